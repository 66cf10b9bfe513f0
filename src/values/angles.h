// The angle of a rotation: the one place that rounds it.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "relpos/terms.h"

namespace relpos {

// position * frequency[p], the angle of pair p. float32_angles rounds frequency, position and
// product to float32 first.
inline double rotation_angle(const PairFrequencies& of, int64_t position, size_t p) {
  const double frequency = of.frequency[p];
  if (!of.float32_angles) return static_cast<double>(position) * frequency;
  return static_cast<double>(static_cast<float>(position) * static_cast<float>(frequency));
}

// cos and sin of the angle of each pair, without the magnitude. The double angle is reduced exactly
// by the library, and each result rounded once to T.
template <typename T>
void angle_table(const PairFrequencies& of, int64_t position, T* cos, T* sin) {
  for (size_t p = 0; p < of.frequency.size(); ++p) {
    const double angle = rotation_angle(of, position, p);
    cos[p] = static_cast<T>(std::cos(angle));
    sin[p] = static_cast<T>(std::sin(angle));
  }
}

}  // namespace relpos
