#include "kernels/terms/value_tables.h"

#include <algorithm>

#include "base/zeros.h"

namespace relpos {

ValueTables::ValueTables(const Plan& plan, Workspace& memory) : Term(plan) {
  for (const TablePlan& table : plan.value_tables) {
    const int64_t stride = plan.cell_stride(table.window);
    tables_.push_back({{},
                       {},
                       {},
                       stride,
                       memory.take<float>(kRows * stride),
                       memory.take<float>(plan.backward ? 0 : int64_t{2} * kRows * kLanes),
                       memory.take<float>(plan.backward ? kRows * stride : 0)});
  }
}

void ValueTables::attach(Block& block, const float* /*queries*/) {
  for (size_t n = 0; n < tables_.size(); ++n) {
    const TablePlan& table = plan_.value_tables[n];
    Table& own = tables_[n];
    own.seen = table.window.cut(block.range);
    own.cut = table.multiplied(own.seen);
    own.cuts = GroupCuts(block, table);
    Panel panel;
    panel.lo = table.window.lo + own.cut.first;
    panel.width = own.cut.width;
    panel.stride = own.stride;
    panel.gradient = own.weights.get();
    if (own.far_sums.size() > 0) panel.far_sums = own.far_sums.get();
    panel.once = plan_.p.positions.consecutive;
    block.values.push_back(panel);
  }
}

void ValueTables::start(const BlockGradients& rows, const Sums&, const TermSums&) {
  Block& block = rows.block;
  for (size_t n = 0; n < tables_.size(); ++n) {
    const TablePlan& table = plan_.value_tables[n];
    const Table& own = tables_[n];
    table_products(plan_.kernels, table, block.head[0], block.rows, rows.state.dout, plan_.Dvp,
                   own.cut, own.cuts, own.reads.get() + kPad, own.stride);
    fill_pads(plan_.kernels, table, block.rows, own.cut, own.reads.get(), own.stride);
    block.values[n].cells = own.reads.get();
  }
}

void ValueTables::clear(const Block& block) {
  for (const Table& own : tables_) {
    fill_zeros(own.weights.get(), block.rows * own.stride);
    for (int64_t side = 0; side < 2 && own.far_sums.size() > 0; ++side) {
      std::fill_n(own.far_sums.get() + side * kRows * kLanes, round_up(block.rows, kGroup) * kLanes,
                  0.0f);
    }
  }
}

void ValueTables::add(const Block& block, float* l, float* o) {
  for (size_t n = 0; n < tables_.size(); ++n) {
    const TablePlan& table = plan_.value_tables[n];
    const Table& own = tables_[n];
    for (int64_t side = 0; side < 2; ++side) {
      const float* sums = own.far_sums.get() + side * kRows * kLanes;
      const auto add_to = [&](float* to, int64_t stride) {
        plan_.kernels.add_row_sums(block.rows, kLanes, sums, kLanes, to, stride);
      };
      add_to(own.weights.get() + (side == 0 ? 0 : kPad + own.cut.width), own.stride);
      if (n == 0) add_to(l, kLanes);  // the sums of all tables are the same
    }
    fold_pads(plan_.kernels, table, block.rows, own.cut, own.weights.get(), own.stride);
    for_each_head(block, [&](int64_t head, int first, int rows) {
      const float* cells = own.weights.get() + first * own.stride + own.seen.first - own.cut.first;
      add_table_rows(plan_.kernels, table, head, own.seen, GroupCuts(), rows, cells, own.stride,
                     o + first * plan_.Dvp, plan_.Dvp, true);
    });
  }
}

void ValueTables::finish(const BlockGradients& rows, const Sums& sums) {
  const Block& block = rows.block;
  for (size_t n = 0; n < tables_.size(); ++n) {
    const TablePlan& table = plan_.value_tables[n];
    const Table& own = tables_[n];
    fold_pads(plan_.kernels, table, block.rows, own.cut, own.weights.get(), own.stride);
    sums.tables[n].add(plan_.kernels, table, rows.g, own.cut, own.cuts, block.rows,
                       own.weights.get(), own.stride, rows.state.dout, plan_.Dvp);
  }
}

}  // namespace relpos
