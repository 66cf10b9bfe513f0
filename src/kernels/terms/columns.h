// Column tables: what s2 <c_j, r'[m(delta)]> adds to a block's scores of one tile, and its gradients.
//
// Keys times rows of the table are computed for the distances of one block and one tile, over runs:
// neighbouring distances of one class share a product, so that any 16 consecutive distances read at
// most 16 consecutive products, which a load and a permute serve.
// Reference twins: Head::column_factor(), Head::score_row() and HeadGradient::add_column().
#pragma once

#include "kernels/terms/gradient_sums.h"

namespace relpos {

class ColumnTables {
 public:
  ColumnTables(const Plan& plan, Workspace& memory);

  // Points block.extra at what the terms add to the scores of a tile.
  void before(Block& block, const KeyTile& tile);
  // Adds what ds [rows, kTile] of tile t gives to the sums of a chunk, and, in the block's turn, to
  // those of the keys; `g` of a group of heads.
  void after(const Block& block, const float* ds, const KeyTile& tile, int64_t t, int64_t g,
             const Sums& sums, const KeySums& keys);

 private:
  // What one term reads for some rows of one head and the keys of a tile.
  struct Reach {
    int64_t first = 0, width = 0;  // runs, in multiples of kLanes
    bool ordered = false;          // runs_ holds the run of every row - key
    int64_t single = -1;           // the run of every pair, less `first`; -1: there are several
  };
  // With `sums`, `ordered` does not depend on `single`: whether the pairs of a tile read one run
  // depends on the distances of the whole batch, and the order of a sum must not.
  Reach reach(const ColumnPlan& term, const Block& block, const KeyTile& tile, int row, int rows,
              bool sums);
  // products_[kTile, at.width] = the tile's factors times the rows of the table.
  void multiply(const ColumnPlan& term, int64_t head, const KeyTile& tile, const Reach& at);
  // products_[kTile, at.width] = ds of the pairs that read each run, summed.
  void sum_runs(const ColumnPlan& term, const Reach& at, const Block& block, const KeyTile& tile,
                const float* ds);
  // The run of a pair, less `first`.
  static int64_t run(const ColumnPlan& term, const Reach& at, const Block& block,
                     const KeyTile& tile, int row, int64_t key);

  const Plan& plan_;
  int64_t stride_;
  Buffer<float> extra_;     // [kRows, kTile]
  Buffer<float> products_;  // [kTile, stride_]
  Buffer<int32_t> runs_;
};

// What the column terms have summed for key j of a pair: into dk where the key is the factor.
void add_column_factors(const Plan& plan, const KeySums& sums, int64_t pair, int64_t j, float* dk,
                        TermGradients& to);

}  // namespace relpos
