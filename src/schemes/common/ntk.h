// The base of rotations whose context grows (bloc97 2023, NTK-aware scaling).
#pragma once

#include <cmath>

#include "schemes/common/rotary.h"

namespace relpos::common {

// The base with which the slowest of `dims` / 2 pairs turns `factor` times slower, and the fastest,
// as before, by 1. Of one pair alone there is no slower one.
inline double ntk_base(double base, double factor, int64_t dims) {
  if (dims <= 2) return base;
  return base * std::pow(factor, static_cast<double>(dims) / static_cast<double>(dims - 2));
}

}  // namespace relpos::common
