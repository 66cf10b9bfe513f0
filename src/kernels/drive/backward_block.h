// A block of the backward pass: its rows' outputs, and the gradients that they send on.
#pragma once

#include "kernels/drive/query_block.h"
#include "kernels/drive/schedule.h"
#include "kernels/terms/gradient_sums.h"

namespace relpos {

// What the forward pass has left, and the gradients of it.
struct Outputs {
  TensorView out, softmax, dout, dlse;
};

// Where a block of head g of a group adds: the sums of its chunk, and in its turn those of its keys.
struct BlockSums {
  int64_t g;
  const ChunkSums& terms;
  KeySums& keys;
  BlockTurn turn;

  // Waits for the turn of tile t; false: nothing may be added.
  bool take(int64_t t) {
    if (!turn.await_tile(t)) return false;
    keys.open(t);
    return true;
  }
};

// One worker's. All rows are of one head.
class BackwardBlock : public QueryBlock {
 public:
  BackwardBlock(const Plan& plan, Workspace& memory);

  BackwardState state;

  // Loads the rows that were added.
  void start(BlockSums& sums, const Outputs& from, const ProblemGradients& gradients);
  // Adds what tiles [t, t + count), at most kTilesAtATime, contribute.
  void backward(const KeyTile* tiles, int64_t t, int64_t count, BlockSums& sums, TermGradients& to);
  // Sends on what the rows have summed.
  void finish(const BlockSums& sums, const ProblemGradients& gradients);

 private:
  void load_states(const BlockSums& sums, const Outputs& from, const BlockGradients& to);
  void load_state(int row, const float* dout, const BlockSums& sums, const Outputs& from,
                  const BlockGradients& rows);
  void sum_rows();
  BlockGradients rows_of(const BlockSums& sums, TermGradients& to) {
    return {block, state, sums.g, raw_.get(), dq_.get(), row_sums_, to};
  }

  Buffer<float> dout_, out_, dq_, p_, ds_;
  bfloat16::NarrowRows narrow_dout_;
  // Sums of the rows' gradients of scores: those of the lse less those of the sinks. Where the softmax
  // is of more keys than these, they are summed (sums_rows_).
  bool sums_rows_ = false;
  double row_sums_[kRows] = {};
  Buffer<float> tile_dq_;  // where a rotation decays: dq of the queries scaled for a tile
};

void lay_out_backward(const Plan& plan, int threads, Workspace& memory);

}  // namespace relpos
