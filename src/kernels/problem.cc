#include "kernels/problem.h"

#include <algorithm>
#include <cmath>

namespace relpos {

uint64_t Visibility::bits(int64_t b, int64_t h, int64_t i, int64_t tile) const noexcept {
  const int64_t first = tile * kTile;
  const auto [lo, hi] = interval(b, i);
  const int64_t from = std::clamp<int64_t>(lo - first, 0, kTile);
  const int64_t to = std::clamp<int64_t>(std::min(hi, keys) - first, 0, kTile);
  if (to <= from) return 0;
  uint64_t word = (~uint64_t{0} >> (kTile - (to - from))) << from;
  if (!key_bits.empty()) {
    const int64_t words = (keys + kTile - 1) / kTile;
    word &= key_bits[static_cast<size_t>(b * words + tile)];
  }
  if (!mask.given()) return word;
  // A floating mask hides a pair by -inf, so that nothing of a hidden key, NaN included, is read.
  for (int64_t c = from; c < to; ++c) {
    const int64_t at = mask_offset(b, h, i, first + c);
    const bool hidden = mask.dtype == DType::kBool ? mask.load_int(at) == 0
                                                   : mask.load(at) == -HUGE_VAL;
    if (hidden) word &= ~(uint64_t{1} << c);
  }
  return word;
}

std::pair<int64_t, int64_t> Problem::distance_range() const noexcept {
  int64_t low = INT64_MAX, high = INT64_MIN;
  const int64_t rows = std::max({visible.rows, positions.q_rows, positions.k_rows});
  for (int64_t b = 0; b < rows; ++b) {
    int64_t k_low = INT64_MAX, k_high = INT64_MIN;
    if (!positions.consecutive) {
      for (int64_t j = 0; j < keys; ++j) {
        k_low = std::min(k_low, positions.key(b, j));
        k_high = std::max(k_high, positions.key(b, j));
      }
    }
    for (int64_t i = 0; i < queries; ++i) {
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
