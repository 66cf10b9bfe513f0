// The backward pass of a block over tiles whose products a unit computes. What a row sums over keys is
// taken from the rows of p and ds; what a key sums over rows, from their pairs of rows, against the
// transposes of the queries and of dout, so that nothing is transposed tile by tile.
#include <algorithm>

#include "kernels/units/guarded_products.h"
#include "kernels/units/kernels.h"

namespace relpos::bfloat16 {
namespace {

// One tile.
class TileGradients {
 public:
  TileGradients(Block& block, BackwardState& state, const KeyTile& tile, int64_t t)
      : block_(block),
        state_(state),
        tile_(tile),
        t_(t),
        keys_(block, t),
        unit_(*block.kernels->unit) {}

  void run() {
    bool any = false;
    for (int from = 0; from < block_.rows; from += kPart) {
      const int end = std::min(block_.rows, from + kPart);
      if (sees(block_, from, end, t_)) {
        any = true;
        weigh(from, end);
        add_to_queries(from, end);
      } else {
        std::fill_n(state_.p + from * kTile, kPart * kTile, 0.0f);
        std::fill_n(state_.ds + from * kTile, kPart * kTile, 0.0f);
      }
    }
    if (!any || !state_.take_turn(state_.sums, t_)) return;
    block_.kernels->add_key_bias_gradients(block_, state_, t_);
    add_to_keys(state_.p, state_.narrow_dout_t, block_.Dvp, state_.dv);
    add_to_keys(state_.ds, block_.narrow_qt, block_.Dp, state_.dk);
  }

 private:
  void weigh(int from, int end) {
    const int64_t rows = round_up(end - from, kUnitRows);
    unit_.gemm(rows, keys_.columns, block_.Dq, block_.narrow_q + from * block_.Dq, block_.Dq,
               tile_.pairs.kt, kTile, state_.p + from * kTile, kTile, false);
    unit_.gemm(rows, keys_.columns, block_.Dvq, state_.narrow_dout + from * block_.Dvq, block_.Dvq,
               tile_.pairs.vt, kTile, state_.ds + from * kTile, kTile, false);
    block_.kernels->weigh_gradients(block_, state_, tile_, t_, from, end);
    // Products of the rows beyond: 0 times a key, which may be NaN.
    const int64_t weighed = from + round_up(end - from, kGroup);
    for (float* rest : {state_.p, state_.ds}) {
      std::fill(rest + std::min(weighed, from + rows) * kTile, rest + (from + rows) * kTile, 0.0f);
    }
  }

  // dq += ds k.
  void add_to_queries(int from, int end) {
    const int64_t rows = round_up(end - from, kUnitRows), Dp = block_.Dp;
    float* dq = state_.dq + from * Dp;
    alignas(64) uint16_t ds[kPart * kTile];
    unit_.narrow(rows, keys_.depth, state_.ds + from * kTile, kTile, ds, keys_.depth);
    if (tile_.k_finite) {
      unit_.gemm(rows, Dp, keys_.depth, ds, keys_.depth, tile_.pairs.k, Dp, dq, Dp, true);
      return;
    }
    const VisibleRows visible(block_, from, end, t_, state_.reference);
    guarded_gemm(unit_, rows, Dp, keys_.depth, ds, tile_.pairs.k, dq,
                 [&](int64_t row, int64_t key, int64_t) { return visible(row, key); });
  }

  // The tile's `to` [n, kTile] += from [n, unit_rows()] p, or ds.
  void add_to_keys(const float* rows, const uint16_t* from, int64_t n, float* to) {
    alignas(64) uint16_t pairs[kRows * kTile];
    const int64_t depth = block_.unit_rows();
    to += t_ * kTile * n;
    if (state_.rows_finite) {
      const int64_t columns = keys_.columns;
      unit_.narrow_pairs(depth, columns, rows, kTile, pairs);
      unit_.gemm(n, columns, depth, from, depth, pairs, columns, to, kTile, true);
      return;
    }
    unit_.narrow_pairs(depth, kTile, rows, kTile, pairs);
    const VisibleRows visible(block_, 0, block_.rows, t_, state_.reference);
    guarded_gemm(unit_, n, kTile, depth, from, pairs, to,
                 [&](int64_t, int64_t row, int64_t key) { return visible(row, key); });
  }

  Block& block_;
  BackwardState& state_;
  const KeyTile& tile_;
  int64_t t_;
  TileKeys keys_;
  const MatrixUnit& unit_;
};

}  // namespace

void backward(Block& block, BackwardState& state, const KeyTile& tile, int64_t t,
              const KeyTile* /*next*/) {
  const MatrixUnit& unit = *block.kernels->unit;
  // Rows that pad the block to what a unit takes.
  const int64_t padded = block.unit_rows() - block.rows;
  std::fill_n(state.p + block.rows * kTile, padded * kTile, 0.0f);
  std::fill_n(state.ds + block.rows * kTile, padded * kTile, 0.0f);
  unit.begin();
  TileGradients(block, state, tile, t).run();
  unit.end();
}

}  // namespace relpos::bfloat16
