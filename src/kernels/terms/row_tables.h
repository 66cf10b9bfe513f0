// s1 <a_i, r[m(delta)]>: a panel for each query row, which holds the products of the block's rows with
// the table's. Wide windows slide: the cells are those that the next tiles read.
// Reference twins: Head::row_factor(), Head::score_row() and HeadGradient::add_row_table().
#pragma once

#include <vector>

#include "kernels/terms/gradient_sums.h"

namespace relpos {

// One worker's.
class RowTables {
 public:
  RowTables(const Plan& plan, Workspace& memory);

  // Loads the factors of a block's rows and adds a panel for each table to block.scores. `queries`
  // [kRows, Dp]: as they were given.
  void attach(Block& block, const float* queries);
  // Brings the cells to what tiles [t, t + count) read, `count` at most kTilesAtATime. Those that were
  // there already move along. In the backward pass the gradients of cells that go join the task's
  // sums and the factors' gradients; head g of a group.
  void before(Block& block, int64_t t, int64_t count, int64_t g = 0, const Sums* sums = nullptr);
  // Ends the backward pass of a block: adds to dq [kRows, Dp] and to the gradients of the factors.
  void finish(Block& block, int64_t g, const Sums& sums, float* dq, TermGradients& to);

  // Cells of table n that tiles [t, t + count) read: whole panels where it slides, else what is
  // multiplied for all that the block reads.
  Cut reach(const Block& block, int64_t n, int64_t t, int64_t count) const;
  static int64_t stride(const Plan& plan, const TablePlan& table);

 private:
  struct Table {
    Cut seen;        // where the table does not slide: the cells that the block reads
    Cut cut;         // those that are there
    GroupCuts cuts;  // what groups of rows read
    Panel panel;
    Buffer<float> factor;     // [kRows, padded rank] times s1 log2(e)
    Buffer<float> cells;      // [kRows, stride]
    Buffer<float> far_cells;  // of a Panel
    // Backward: gradients of the two.
    Buffer<float> factor_gradient, cell_gradients;
  };
  void load_factors(const Block& block, int64_t n, const float* queries);
  void leave(const Block& block, int64_t n, const Cut& to, int64_t g, const Sums& sums);
  void finish_row(const Block& block, int64_t n, int row, double* added, float* dq,
                  std::vector<double>& factor) const;

  const Plan& plan_;
  std::vector<Table> tables_;
};

}  // namespace relpos
