// t[m(delta)] joins v_j under the weights: weights are summed by distance in a panel for each query row,
// and after the last tile those sums meet the table once.
// Reference twins: Head::value_row() and HeadGradient::add_values().
#pragma once

#include <vector>

#include "kernels/terms/gradient_sums.h"

namespace relpos {

// One worker's.
class ValueTables {
 public:
  ValueTables(const Plan& plan, Workspace& memory);

  // Adds a panel for each table to block.values. `dout` [kRows, Dvp], backward: its products with the
  // table are what a weight's gradient reads.
  void attach(Block& block, const float* dout = nullptr);
  void clear(const Block& block);  // the sums of weights
  // o [kRows, Dvp] += the tables under their weights; l [kRows, kLanes] += the weights of far tiles, which
  // the forward pass sums in far_sums instead.
  void add(const Block& block, float* l, float* o);
  // The gradients of the tables, head g of a group.
  void finish(const Block& block, const float* dout, int64_t g, const Sums& sums);

 private:
  struct Table {
    Cut seen;        // the cells that the block reads
    Cut cut;         // those that are there
    GroupCuts cuts;  // what groups of rows read
    int64_t stride = 0;
    Buffer<float> weights;   // [kRows, stride], summed
    Buffer<float> far_sums;  // of a Panel (forward)
    Buffer<float> reads;     // backward
  };
  const Plan& plan_;
  std::vector<Table> tables_;
};

}  // namespace relpos
