// The parts of a position in a call: where they place tokens, their parameters, their gradients.
#pragma once

#include <cstdint>
#include <vector>

#include "binding/recipe.h"
#include "relpos/export.h"
#include "relpos/family.h"  // IWYU pragma: export

RELPOS_EXPORT_BEGIN
namespace relpos {

// Whether a part places tokens.
bool places(const Position& position);
// Appends where the position places the tokens first, first + 1, ...; throws Error where two of its
// parts disagree.
void append_places(const Position& position, Side side, int64_t first, int64_t count,
                   const char* name, std::vector<int64_t>& positions);

// The parameters of one part against its specs. Sizes of inputs that are 0 are not checked.
void check_parameters(const Part& part, const CallSizes& sizes);

// Zeros for every wanted parameter.
ParameterSums zero_sums(const Part& part, const std::vector<bool>& wants);

// Sends the gradients of all terms back through every part and writes the wanted parameters.
void pull_back_parts(const Position& position, const CallSizes& sizes,
                     const std::vector<std::vector<bool>>& wants, TermGradients gradients,
                     const std::vector<std::vector<TensorView>>& parameters);

}  // namespace relpos
RELPOS_EXPORT_END
