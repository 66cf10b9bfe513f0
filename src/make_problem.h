// Checks the arguments of a public call, binds its position, and gives the kernels their Problem.
#pragma once

#include <string>
#include <vector>

#include "kernels/problem.h"
#include "recipe.h"
#include "relpos/attention.h"

namespace relpos {

inline constexpr int64_t kPositionLimit = int64_t{1} << 61;  // distances then fit int64 with room

void check_position(int64_t position, const char* name);

// Throws the error about a q_offset that must be said; `why` completes "not given, and ...".
[[noreturn]] void refuse_to_guess(const std::string& why);

// Whether a part places tokens.
bool places(const Position& position);
// Appends where the position places the tokens first, first + 1, ...; throws Error where two of its
// parts disagree.
void append_places(const Position& position, int64_t first, int64_t count, const char* name,
                   std::vector<int64_t>& positions);

struct Call {
  Problem problem;
  CallSizes sizes;
  std::vector<std::vector<bool>> wants;  // [part][parameter]
  // How many of the problem's terms each part gave.
  struct TermCounts {
    size_t biases, row_tables, column_tables, key_biases, value_tables, query_added;
  };
  std::vector<TermCounts> counts;
};

// `value` may be not given (scores, weights). `wants` empty: no gradient is wanted.
Call make_call(const TensorView& query, const TensorView& key, const TensorView& value,
               const Position& position, const Options& options,
               std::vector<std::vector<bool>> wants = {});

// A view broadcast to `shape` by zero strides; throws Error naming the argument.
TensorView broadcast_view(const TensorView& view, const std::vector<int64_t>& shape,
                          const char* name);

// Throws unless `view` has this shape and dtype and may be written.
void check_output(const TensorView& view, const std::vector<int64_t>& shape, DType dtype,
                  const char* name);
void check_input(const TensorView& view, const std::vector<int64_t>& shape, const char* name);

// The parameters of one part against its specs. Sizes of inputs that are 0 are not checked.
void check_parameters(const Part& part, const CallSizes& sizes);

// Zeros for every wanted parameter.
ParameterSums zero_sums(const Part& part, const std::vector<bool>& wants);

// Sends term gradients back through every part and writes the wanted parameters.
void pull_back_parts(const Call& call, const Position& position, TermGradients gradients,
                     const std::vector<std::vector<TensorView>>& parameters);

// Writes contiguous values in the order of a strided view, converting to its dtype.
void write_values(const std::vector<double>& values, const TensorView& view);

}  // namespace relpos
