// A block of the backward pass: its rows' outputs, and the gradients that they send on.
#pragma once

#include <optional>

#include "kernels/drive/mask_order.h"
#include "kernels/drive/query_block.h"
#include "kernels/drive/schedule.h"
#include "kernels/terms/gradient_sums.h"

namespace relpos {

// What the forward pass has left, and the gradients of it.
struct Outputs {
  TensorView out, softmax, dout, dlse;
};

// Where a block of head g of a group adds: the sums of its chunk, and in its turns those of its keys and
// of the mask's gradient.
struct BlockSums {
  int64_t g;
  const ChunkSums& terms;
  KeySums& keys;
  BlockTurn turn;
  std::optional<MaskTurn> mask;  // empty: not wanted

  // Waits for the turn of tile t; false: nothing may be added.
  bool take(int64_t t) {
    if (!turn.await_tile(t)) return false;
    keys.open(t);
    return true;
  }
  // As of BlockTurn; true: of the keys' order.
  void leave_before(int64_t t) noexcept {
    turn.leave_before(t);
    if (mask) mask->leave_before(t);
  }
  bool finish() noexcept {
    if (mask) mask->finish();
    return turn.finish();
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
  // The gradients of tile t go to the mask, in the block's turn.
  void send_to_mask(int64_t t, BlockSums& sums);
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
  Buffer<float> mask_ds_;  // where a softcap follows the mask: ds before it
};

void lay_out_backward(const Plan& plan, int threads, Workspace& memory);

}  // namespace relpos
