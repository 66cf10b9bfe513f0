// s3 <a_i, r"[class[i,j]]>: a row of cells for each query row of a block, the products of its factor with
// every row of the table, which pairs look up by their bytes.
// Reference twins: Head::pair_factor(), Head::score_row() and HeadGradient::add_pair_rows().
#pragma once

#include <vector>

#include "kernels/terms/term.h"

namespace relpos {

class PairRowTables : public Term {
 public:
  struct Sums : TablesSums {
    Sums(const Plan& plan, const TermGradients& wants, SumMemory& memory)
        : TablesSums(plan.pair_rows, wants.pair_rows, plan.p.group(), memory) {}
  };

  PairRowTables(const Plan& plan, Workspace& memory);
  // Loads the factors of a block's rows, and adds a panel for each table to block.pairs.
  void attach(Block& block, const float* queries);
  void start(const BlockGradients& rows, const Sums& sums, const TermSums&);
  bool reads_dq(const Sums&) const { return !tables_.empty(); }
  // Adds to the chunk's sums, to dq and to the gradients of the factors.
  void finish(const BlockGradients& rows, const Sums& sums);
  template <typename Reduce>
  static void reduce_tables(const Plan& plan, TermGradients& to, const Reduce& reduce) {
    TablesSums::reduce_each<Sums>(plan.pair_rows, plan.p.terms.pair_rows, kLn2, to.pair_rows,
                                  reduce);  // sums hold factors times s log2(e)
  }
  static int64_t bytes(const Plan& plan) {
    return TablesSums::bytes(plan.pair_rows, plan.p.group());
  }

 private:
  struct Table {
    int64_t stride = 0;
    Buffer<float> factor;                           // [kRows, padded rank] times s3 log2(e)
    Buffer<float> cells;                            // [kRows, stride]
    Buffer<float> factor_gradient, cell_gradients;  // backward; the latter after kPad numbers
  };
  std::vector<Table> tables_;
};

}  // namespace relpos
