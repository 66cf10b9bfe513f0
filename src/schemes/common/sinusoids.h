// Sinusoids of a distance, for projected rows.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "relpos/scheme.h"

namespace relpos::common {

struct SinusoidOptions {
  std::optional<int64_t> farthest = {};  // n is within [-farthest, farthest]
  bool interleaved = false;              // sin(n f_0), cos(n f_0), sin(n f_1), ...
};

// [sin(n f_0), sin(n f_1), ..., cos(n f_0), cos(n f_1), ...],   n = pos_q - pos_k.
Builder::FeatureRows sinusoids(const std::vector<double>& frequencies,
                               const SinusoidOptions& options = {});

}  // namespace relpos::common
