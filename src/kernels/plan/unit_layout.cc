#include "kernels/plan/unit_layout.h"

#include <cmath>

#include "base/half.h"

namespace relpos {
float largest_norm(const uint16_t* rows, int64_t stride, int64_t count, int64_t n) {
  constexpr double kRounded = 1.0 + 0x1p-7;
  double largest = 0.0;
  for (int64_t row = 0; row < count; ++row) {
    double sum = 0.0;
    for (int64_t x = 0; x < n; ++x) {
      const auto value = static_cast<double>(widen_bfloat16(rows[row * stride + x]));
      sum += value * value;
    }
    largest = larger_or_nan(largest, sum);
  }
  return static_cast<float>(std::sqrt(largest) * kRounded);
}

}  // namespace relpos
