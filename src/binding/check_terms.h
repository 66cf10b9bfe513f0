// Whether the terms of a position fit a call: shapes, heads, head sizes.
#pragma once

#include <string>

#include "relpos/terms.h"
#include "values/call_shape.h"

namespace relpos {

// The terms of one part, which `who` names in errors.
void check_terms(const Terms& terms, const CallShape& call, const std::string& who);
// The same of what joins values, for a call that has them.
void check_value_tables(const Terms& terms, const CallShape& call, const std::string& who);
// Checks that a rotation that turns by frequencies has one for each of its pairs.
void check_pairs(const Rotation& rotation, const std::string& who);
// Checks the rotations of all parts.
void check_rotations_disjoint(const Terms& terms);

}  // namespace relpos
