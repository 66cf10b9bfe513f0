// The unit of scores in the kernels: log2, so that exp(x) = exp2(x log2(e)).
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>

namespace relpos {

inline constexpr double kLog2e = 1.4426950408889634;
inline constexpr double kLn2 = 0.6931471805599453;

// A term of a score, in natural units, as kernels add it: times log2(e). What is finite stays finite
// and keeps its order, for only -inf hides: beyond kLinear, where a mask's lowest float lies, the
// slope is smaller.
inline constexpr double kLinear = 2.2e38;
inline constexpr double kSqueeze =
    (double{FLT_MAX} - kLinear * kLog2e) / (double{FLT_MAX} - kLinear);
inline double to_log2(double term) noexcept {
  const double size = std::fabs(term);
  if (!(size > kLinear) || std::isinf(size)) return term * kLog2e;
  const double scaled = kLinear * kLog2e + (size - kLinear) * kSqueeze;
  return std::copysign(std::min(scaled, double{FLT_MAX}), term);
}
inline double from_log2(double score) noexcept {
  const double size = std::fabs(score);
  if (!(size > kLinear * kLog2e) || std::isinf(size)) return score * kLn2;
  return std::copysign(kLinear + (size - kLinear * kLog2e) / kSqueeze, score);
}

}  // namespace relpos
