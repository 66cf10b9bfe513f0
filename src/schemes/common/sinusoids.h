// Sinusoids of a distance, for projected rows.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "relpos/scheme.h"

namespace relpos::common {

// [sin(n f_0), sin(n f_1), ..., cos(n f_0), cos(n f_1), ...],   n = pos_q - pos_k; with `farthest`, n
// within [-farthest, farthest].
inline Builder::Features sines_then_cosines(std::vector<double> frequencies,
                                            std::optional<int64_t> farthest = {}) {
  return [frequencies = std::move(frequencies), farthest](int64_t delta, double* features) {
    const int64_t n = farthest ? std::clamp(-delta, -*farthest, *farthest) : -delta;
    const size_t half = frequencies.size();
    for (size_t p = 0; p < half; ++p) {
      const double angle = static_cast<double>(n) * frequencies[p];
      features[p] = std::sin(angle);
      features[half + p] = std::cos(angle);
    }
  };
}

}  // namespace relpos::common
