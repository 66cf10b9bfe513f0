// Exact skipping: a tile whose weights all underflow to 0 changes no sum, whatever its values, so it is
// not read. Biases that fall with distance cause many such tiles.
//
//   score <= |q| |k| + largest bias;  a weight is exactly 0 where score - reference < -125 (log2).
#pragma once

#include "kernels/plan.h"

namespace relpos {

class TileSkip {
 public:
  explicit TileSkip(const Plan& plan) : plan_(plan) {}

  // The queries of the block have been loaded.
  void start(const Block& block);
  // The tile to start with, so that references are near their final values at once: of tiles
  // [first, end) the first one with the largest bias.
  int64_t start_tile(const Block& block, int64_t first, int64_t end) const;
  // True if the tile changes no bit. `reference`: the references of the rows, forward or backward.
  bool skips(const Block& block, const KeyTile& tile, int64_t t, const float* reference) const;

 private:
  double largest_bias(const Block& block, int64_t t) const;

  const Plan& plan_;
  double query_norm_ = 0.0;
  int64_t lowest_shift_ = 0, highest_shift_ = 0;  // of the rows
};

}  // namespace relpos
