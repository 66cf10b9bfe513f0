#include "kernels/problem.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/parallel.h"
#include "kernels/block.h"

namespace relpos {

uint64_t Visibility::bits(int64_t b, int64_t h, int64_t i, int64_t tile) const noexcept {
  const int64_t first = tile * kTile;
  const auto [lo, hi] = interval(b, i);
  const uint64_t inside = interval_bits(lo - first, std::min(hi, keys) - first);
  if (inside == 0) return 0;
  uint64_t word = inside;
  if (!key_bits.empty()) {
    const int64_t words = (keys + kTile - 1) / kTile;
    word &= key_bits[b * words + tile];
  }
  if (!mask.given()) return word;
  const int from = std::countr_zero(inside);
  return word & mask_bits(b, h, i, first + from, std::popcount(inside)) << from;
}

uint64_t Visibility::mask_bits(int64_t b, int64_t h, int64_t i, int64_t j,
                               int64_t count) const noexcept {
  return tile_kernels().mask_bits(mask, mask_offset(b, h, i, j), count);
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
