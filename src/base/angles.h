// The angle of a rotation: the one place that rounds it.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "relpos/terms.h"

namespace relpos {

// cos and sin of position * frequency[p] for each pair p, without the magnitude. The product is a
// double, reduced exactly by the library, and each result rounded once to T; float32_angles rounds
// frequency, position and product to float32 first.
template <typename T>
void angle_table(const Rotation& rotation, int64_t position, T* cos, T* sin) {
  for (size_t p = 0; p < rotation.frequency.size(); ++p) {
    const double frequency = rotation.frequency[p];
    const double angle =
        rotation.float32_angles
            ? static_cast<double>(static_cast<float>(position) * static_cast<float>(frequency))
            : static_cast<double>(position) * frequency;
    cos[p] = static_cast<T>(std::cos(angle));
    sin[p] = static_cast<T>(std::sin(angle));
  }
}

}  // namespace relpos
