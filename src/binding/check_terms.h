// Whether the terms of a position fit a call: shapes, heads, head sizes.
#pragma once

#include <string>

#include "kernels/problem.h"

namespace relpos {

// The terms of one part, which `who` names in errors.
void check_terms(const Terms& terms, const Problem& problem, const std::string& who);
// Of all parts.
void check_rotations_disjoint(const Terms& terms);

}  // namespace relpos
