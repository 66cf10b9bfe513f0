// s1 <a_i, r[m(delta)]>: a panel for each query row, which holds the products of the block's rows with
// the table's. Wide windows slide: the cells are those that the next tiles read. A table of rank 1 is a
// bias that each row reads times its factor: the cells are those of the plan.
// Reference twins: Head::row_factor(), Head::score_row() and HeadGradient::add_row_table().
#pragma once

#include <vector>

#include "kernels/terms/term.h"

namespace relpos {

class RowTables : public Term {
 public:
  struct Sums : TablesSums {
    std::vector<double*> added;  // [group, rank]

    Sums(const Plan& plan, const TermGradients& wants, SumMemory& memory);
  };

  RowTables(const Plan& plan, Workspace& memory);
  // Loads the factors of a block's rows and adds a panel for each table to block.scores.
  void attach(Block& block, const float* queries);
  // Cells that were there already move along. In the backward pass the gradients of those that go join the
  // chunk's sums and the factors' gradients.
  void leave(const BlockGradients& rows, int64_t t, int64_t count, const Sums& sums);
  void before(Block& block, int64_t t, int64_t count);
  bool reads_dq(const Sums&) const { return !tables_.empty(); }
  // Adds to dq and to the gradients of the factors.
  void finish(const BlockGradients& rows, const Sums& sums);
  static void reduce(const Plan& plan, const Sums& sums, int64_t kv_head, TermGradients& to);
  template <typename Reduce>
  static void reduce_tables(const Plan& plan, TermGradients& to, const Reduce& reduce) {
    TablesSums::reduce_each<Sums>(plan.row_tables, plan.p.terms.row_tables, kLn2, to.row_tables,
                                  reduce);  // sums hold factors times s log2(e)
  }
  static int64_t bytes(const Plan& plan) {
    return TablesSums::bytes(plan.row_tables, plan.p.group());
  }

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
    // Of a gated bias: dscores times cells [kRows, kLanes], and their sums so far [kRows]. Its
    // cell_gradients are [kGroup, stride].
    Buffer<float> gate_lanes;
    Buffer<double> gate_sums;
  };
  void attach_gated(const Block& block, int64_t n);
  void add_gate_sums(const Block& block, int64_t n);
  void finish_gated(const BlockGradients& rows, int64_t n, const Sums& sums);
  void leave_cells(const BlockGradients& rows, int64_t n, const Cut& to, const Sums& sums);
  void finish_row(const Block& block, int64_t n, int row, double* added, float* dq,
                  std::vector<double>& factor) const;

  std::vector<Table> tables_;
};

}  // namespace relpos
