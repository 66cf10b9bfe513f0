#include "kernels/problem.h"

#include <algorithm>
#include <cmath>

#include "base/parallel.h"

namespace relpos {

uint64_t Visibility::bits(int64_t b, int64_t h, int64_t i, int64_t tile) const noexcept {
  return bits(b, h, i, tile, [](const TensorView& row, int64_t at, int64_t count) {
    uint64_t word = 0;
    for (int64_t c = 0; c < count; ++c) {
      const double value = row.load(at + c * row.strides[3]);
      word |= uint64_t{row.dtype == DType::kBool ? value != 0.0 : value != -HUGE_VAL} << c;
    }
    return word;
  });
}

std::pair<int64_t, int64_t> Problem::distance_range() const {
  CancelTicks tick;
  int64_t low = INT64_MAX, high = INT64_MIN;
  const int64_t rows = std::max({visible.rows, positions.q_rows, positions.k_rows});
  for (int64_t b = 0; b < rows; ++b) {
    int64_t k_low = INT64_MAX, k_high = INT64_MIN;
    if (!positions.consecutive) {
      for (int64_t j = 0; j < keys; ++j) {
        tick();
        k_low = std::min(k_low, positions.key(b, j));
        k_high = std::max(k_high, positions.key(b, j));
      }
    }
    for (int64_t i = 0; i < queries; ++i) {
      tick();
      const auto [lo, hi] = visible.interval(b, i);
      if (lo >= hi) continue;
      const int64_t at = positions.query(b, i);
      low = std::min(low, (positions.consecutive ? positions.key(b, lo) : k_low) - at);
      high = std::max(high, (positions.consecutive ? positions.key(b, hi - 1) : k_high) - at);
    }
  }
  if (low > high) return {0, -1};
  return {low, high};
}

}  // namespace relpos
