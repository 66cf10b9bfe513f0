// The forward pass of a block over tiles whose products a unit computes. The rows go through the
// products and the softmax in parts, whose scores stay in the nearest cache.
#include <algorithm>
#include <cmath>

#include "kernels/units/guarded_products.h"
#include "kernels/units/kernels.h"

namespace relpos::bfloat16 {

void forward(Block& block, ForwardState& state, const KeyTile* tiles, int64_t first,
             int64_t count) {
  const Kernels& kernels = *block.kernels;
  const MatrixUnit& unit = *kernels.unit;
  alignas(64) float scores[kPart * kTile];
  alignas(64) uint16_t weights[kPart * kTile];
  unit.begin();
  for (int64_t t = first; t < first + count; ++t) {
    const KeyTile& tile = tiles[t - first];
    const TileKeys keys(block, t);
    for (int from = 0; from < block.rows; from += kPart) {
      const int end = std::min(block.rows, from + kPart);
      if (!sees(block, from, end, t)) continue;
      const int64_t rows = round_up(end - from, kUnitRows);
      unit.gemm(rows, keys.columns, block.Dq, block.narrow_q + from * block.Dq, block.Dq,
                tile.pairs.kt, kTile, scores, kTile, false);
      kernels.weigh_narrow(block, state, tile, t, from, end, scores);
      unit.narrow(rows, keys.depth, scores, kTile, weights, keys.depth);
      float* o = state.o + from * block.Dvp;
      if (tile.v_finite) {
        unit.gemm(rows, block.Dvp, keys.depth, weights, keys.depth, tile.pairs.v, block.Dvp, o,
                  block.Dvp, true);
      } else {
        const VisibleRows visible(block, from, end, t);
        guarded_gemm(unit, rows, block.Dvp, keys.depth, weights, tile.pairs.v, o,
                     [&](int64_t row, int64_t key, int64_t) { return visible(row, key); });
      }
    }
  }
  unit.end();
}

}  // namespace relpos::bfloat16

namespace relpos {

Kernels with_unit(Kernels kernels, const MatrixUnit& unit) {
  kernels.name = unit.name;
  kernels.unit = &unit;
  kernels.forward = bfloat16::forward;
  kernels.backward = bfloat16::backward;
  return kernels;
}

}  // namespace relpos
