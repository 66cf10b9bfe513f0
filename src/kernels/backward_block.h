// A block of the backward pass: the outputs of its rows, and the gradients that it computes.
#pragma once

#include "kernels/query_block.h"
#include "kernels/schedule.h"
#include "kernels/terms/biases.h"
#include "kernels/terms/value_tables.h"

namespace relpos {

// The results of the forward pass, and the gradients with respect to them.
struct Outputs {
  TensorView out, softmax, dout, dlse;
};

// Each worker has one. All rows are of one head.
class BackwardBlock : public QueryBlock {
 public:
  BackwardBlock(const Plan& plan, Workspace& memory);

  BackwardState state;

  // Loads the rows that were added, which are of head g of a group. The task sums into `sums`.
  void start(int64_t g, const Sums& sums, const Outputs& from, const ProblemGradients& gradients);
  // Adds what tiles [t, t + count), at most kTilesAtATime, contribute.
  void backward(const KeyTile* tiles, int64_t t, int64_t count, int64_t g, const Sums& sums);
  // Adds what the rows have summed to the gradients.
  void finish(int64_t g, const Sums& sums, const Outputs& from, const ProblemGradients& gradients);

 private:
  void load_row_state(int row, const Outputs& from);
  void finish_queries(int64_t g, const Sums& sums, const ProblemGradients& gradients);

  BiasGradients biases_;
  ValueTables values_;
  Buffer<float> dout_, out_, dq_, p_, ds_;
  Buffer<float> tile_dq_;  // for a rotation that decays: dq of the queries scaled for a tile
};

void lay_out_backward(const Plan& plan, int threads, Workspace& memory);

}  // namespace relpos
