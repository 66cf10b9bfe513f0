// Exact skipping: a tile whose every weight underflows to 0 adds nothing to any sum, whatever its
// values, so it need not be read. Biases that fall with distance leave many.
//
//   score <= |q| |k| + largest bias;  a weight is exactly 0 where score - reference < -125 (log2).
#pragma once

#include "kernels/plan/plan.h"

namespace relpos {

class TileSkip {
 public:
  explicit TileSkip(const Plan& plan) : plan_(plan) {}

  // The queries of the block have been loaded.
  void start(const Block& block);
  // Where to start, so that references are near their end at once: of tiles [first, end) the first
  // whose bias is largest.
  int64_t start_tile(const Block& block, int64_t first, int64_t end) const;
  // True where the tile changes no bit. `reference`: of the rows, forward or backward.
  bool skips(const Block& block, const KeyTile& tile, int64_t t, const float* reference) const;

 private:
  double largest_bias(const Block& block, int64_t t) const;

  const Plan& plan_;
  double query_norm_ = 0.0;
  int64_t lowest_shift_ = 0, highest_shift_ = 0;  // of the rows
};

}  // namespace relpos
