// t[m(delta)], added to v_j: weights are summed by distance in a panel for each query row, and after the
// last tile these sums are multiplied with the table once.
// In the reference path: Head::value_row() and HeadGradient::add_values().
#pragma once

#include <vector>

#include "kernels/sums.h"

namespace relpos {

// One worker's.
class ValueTables {
 public:
  ValueTables(const Plan& plan, Workspace& memory);

  // Adds a panel for each table to block.values. In the backward pass `dout` [kRows, Dvp] is given; its
  // products with the table are added to the gradients of the weights.
  void attach(Block& block, const float* dout = nullptr);
  void clear(const Block& block);  // the sums of weights
  // o += the sums of weights times the tables.
  void add(const Block& block, float* o);
  // The gradients of the tables, head g of a group.
  void finish(const Block& block, const float* dout, int64_t g, const Sums& sums);

 private:
  struct Table {
    Cut cut;
    int64_t stride = 0;
    Buffer<float> weights;  // [kRows, stride], summed
    Buffer<float> reads;    // backward
  };
  const Plan& plan_;
  std::vector<Table> tables_;
};

}  // namespace relpos
