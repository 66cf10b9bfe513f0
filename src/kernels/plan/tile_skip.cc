#include "kernels/plan/tile_skip.h"

#include <algorithm>
#include <cmath>

namespace relpos {

void TileSkip::start(const Block& block) {
  if (!plan_.skips_tiles) return;
  double largest = 0.0;
  for (int row = 0; row < block.rows; ++row) {
    double sum = 0.0;
    for (int64_t d = 0; d < plan_.D; ++d) {
      const auto x = static_cast<double>(block.q[row * plan_.Dp + d]);
      sum += x * x;
    }
    largest = larger_or_nan(largest, sum);
  }
  query_norm_ = std::sqrt(largest);
  if (plan_.unit != nullptr) query_norm_ *= 1.0 + 0x1p-7;  // of queries that are rounded
  const auto [low, high] = std::minmax_element(block.shift, block.shift + block.rows);
  lowest_shift_ = *low;
  highest_shift_ = *high;
}

double TileSkip::largest_bias(const Block& block, int64_t t) const {
  const Problem& p = plan_.p;
  const int64_t last_key = std::min(p.keys, (t + 1) * kTile) - 1;
  const int64_t low = p.positions.key(block.batch, t * kTile) - block.position[block.rows - 1];
  const int64_t high = p.positions.key(block.batch, last_key) - block.position[0];
  double sum = 0.0;
  for (const BiasPlan& bias : plan_.biases) {
    const auto block_of = [&](int64_t distance) {
      return std::clamp<int64_t>(distance - bias.window.lo + kPad, 0, bias.row_size() - 1) / kTile;
    };
    const float* peaks = bias.peaks.get() + block.head[0] * bias.peaks_per_head();
    const int64_t first = block_of(low - (bias.sloped ? highest_shift_ : 0));
    const int64_t last = block_of(high - (bias.sloped ? lowest_shift_ : 0));
    sum += static_cast<double>(*std::max_element(peaks + first, peaks + last + 1));
  }
  return sum;
}

int64_t TileSkip::start_tile(const Block& block, int64_t first, int64_t end) const {
  if (!plan_.skips_tiles) return first;
  int64_t best = first;
  double largest = -HUGE_VAL;
  for (int64_t t = first; t < end; ++t) {
    const double bias = largest_bias(block, t);
    if (bias > largest) {
      largest = bias;
      best = t;
    }
  }
  return best;
}

bool TileSkip::skips(const Block& block, const KeyTile& tile, int64_t t,
                     const float* reference) const {
  constexpr double kFlushed = -125.0, kSlack = 2.0, kRounding = 1e-4;
  if (!plan_.skips_tiles || !plan_.p.skip_tiles || !tile.k_finite || !tile.v_finite) return false;
  // Biases that no panel holds, and panels whose largest cells nobody knows.
  if (!block.ramps.empty() || block.scores.size() > plan_.biases.size()) return false;
  // A block of several heads has as many biases, and its rows are not in order.
  if (block.head[0] != block.head[block.rows - 1]) return false;
  float lowest = HUGE_VALF;
  for (int row = 0; row < block.rows; ++row) {
    if (block.hi[row] <= t * kTile || block.lo[row] >= (t + 1) * kTile) continue;
    if (std::isnan(reference[row])) return false;
    lowest = std::min(lowest, reference[row]);
  }
  const double product = query_norm_ * static_cast<double>(tile.norm);
  const double bias = largest_bias(block, t);
  const double bound = product + bias + kRounding * (product + std::fabs(bias)) + kSlack;
  return bound - static_cast<double>(lowest) < kFlushed;
}

}  // namespace relpos
