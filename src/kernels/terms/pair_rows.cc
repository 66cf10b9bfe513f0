#include "kernels/terms/pair_rows.h"

#include "kernels/terms/row_factors.h"

namespace relpos {

PairRowTables::PairRowTables(const Plan& plan, Workspace& memory) : Term(plan) {
  for (size_t n = 0; n < plan.pair_rows.size(); ++n) {
    const TablePlan& table = plan.pair_rows[n];
    const int64_t stride = pair_stride(plan.p.terms.pair_rows[n].classes, table.entries);
    const int64_t factors = kRows * table.padded_rank, cells = kRows * stride;
    Table& own = tables_.emplace_back();
    own.stride = stride;
    own.factor = memory.take<float>(factors);
    own.cells = memory.zeros<float>(cells);
    own.factor_gradient = memory.take<float>(plan.backward ? factors : 0);
    own.cell_gradients = memory.take<float>(plan.backward ? kPad + cells : 0);
  }
}

void PairRowTables::attach(Block& block, const float* queries) {
  for (size_t n = 0; n < tables_.size(); ++n) {
    const TablePlan& table = plan_.pair_rows[n];
    const PairRows& term = plan_.p.terms.pair_rows[n];
    const Table& own = tables_[n];
    load_row_factors(plan_, table, term.factor, block, queries, own.factor.get());
    for_each_head(block, [&](int64_t head, int row, int rows) {
      table_products(plan_.kernels, table, head, rows, own.factor.get() + row * table.padded_rank,
                     table.padded_rank, {0, table.entries}, GroupCuts(),
                     own.cells.get() + row * own.stride, own.stride);
    });
    PairPanel& panel =
        block.pairs.emplace_back(pair_panel(term.classes, table.entries, block.batch));
    panel.cells = own.cells.get();
    panel.cell_stride = own.stride;
  }
}

void PairRowTables::start(const BlockGradients& rows, const Sums&, const TermSums&) {
  for (size_t n = 0; n < tables_.size(); ++n) {
    const Table& own = tables_[n];
    float* cells = own.cell_gradients.get() + kPad;
    std::fill_n(cells, round_up(rows.block.rows, kGroup) * own.stride, 0.0f);
    rows.block.pairs[plan_.pair_biases.size() + n].gradient = cells;
  }
}

void PairRowTables::finish(const BlockGradients& rows, const Sums& sums) {
  const Block& block = rows.block;
  for (size_t n = 0; n < tables_.size(); ++n) {
    const TablePlan& table = plan_.pair_rows[n];
    const Table& own = tables_[n];
    const Cut all{0, table.entries};
    const int64_t rank = table.padded_rank;
    const float* cells = own.cell_gradients.get();
    float* da = own.factor_gradient.get();
    sums.tables[n].add(plan_.kernels, table, rows.g, all, GroupCuts(), block.rows, cells,
                       own.stride, own.factor.get(), rank);
    add_table_rows(plan_.kernels, table, block.head[0], all, GroupCuts(), block.rows, cells,
                   own.stride, da, rank, false);
    for (int row = 0; row < block.rows; ++row) {
      send_row_factor(plan_, table, plan_.p.terms.pair_rows[n].factor, block, row, da + row * rank,
                      rows.dq + row * plan_.Dp, rows.to.pair_rows[n].factor);
    }
  }
}

}  // namespace relpos
