// t[m(delta)] joins v_j under the weights: weights are summed by distance in a panel for each query row,
// and after the last tile those sums meet the table once.
// Reference twins: Head::value_row() and HeadGradient::add_values().
#pragma once

#include <vector>

#include "kernels/terms/term.h"

namespace relpos {

class ValueTables : public Term {
 public:
  struct Sums : TablesSums {
    Sums(const Plan& plan, const TermGradients& wants, SumMemory& memory)
        : TablesSums(plan.value_tables, wants.value_tables, plan.p.group(), memory) {}
  };

  ValueTables(const Plan& plan, Workspace& memory);
  // Adds a panel for each table to block.values.
  void attach(Block& block, const float* queries);
  // The products of dout and the table are what a weight's gradient reads.
  void start(const BlockGradients& rows, const Sums& sums, const TermSums&);
  void clear(const Block& block);
  // o += the tables under their weights; l += the weights of far tiles, which the forward pass sums in
  // far_sums instead.
  void add(const Block& block, float* l, float* o);
  void finish(const BlockGradients& rows, const Sums& sums);
  template <typename Reduce>
  static void reduce_tables(const Plan& plan, TermGradients& to, const Reduce& reduce) {
    TablesSums::reduce_each<Sums>(plan.value_tables, plan.p.terms.value_tables, 1.0,
                                  to.value_tables, reduce);
  }
  static int64_t bytes(const Plan& plan) {
    return TablesSums::bytes(plan.value_tables, plan.p.group());
  }

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
  std::vector<Table> tables_;
};

}  // namespace relpos
