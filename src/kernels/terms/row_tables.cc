#include "kernels/terms/row_tables.h"

#include <algorithm>
#include <utility>

#include "kernels/terms/row_factors.h"

namespace relpos {
namespace {

// Whether a table's cells are not all there at once. Products that runs share are computed once a
// block: a window of them would compute many anew.
bool slides(const Plan& plan, const TablePlan& table) {
  return !table.is_gated() && plan.p.positions.consecutive && table.at == nullptr &&
         !table.by_runs() && table.window.width > kSlidingCells;
}

// What a block reads of a table by coordinates of its own.
Cut seen_cells(const Block& block, const TablePlan& table) {
  if (table.at == nullptr) return table.window.cut(block.range);
  const int32_t* queries = table.at->queries(block.batch);
  int64_t low = INT64_MAX, high = INT64_MIN;
  for (int row = 0; row < block.rows; ++row) {
    low = std::min<int64_t>(low, queries[block.index[row]]);
    high = std::max<int64_t>(high, queries[block.index[row]]);
  }
  const auto [first, last] = table.at->key_range();
  return table.window.cut({first - high, last - low});
}

// How many of the last cells of a cut are the first of the next one; 0: none, or it goes back.
int64_t shared(const Cut& from, const Cut& to) {
  const bool follows = from.first <= to.first && to.first < from.end() && from.end() <= to.end();
  return follows ? from.end() - to.first : 0;
}

void move_shared(const Cut& from, const Cut& to, int rows, float* cells, int64_t stride) {
  const int64_t by = to.first - from.first;
  for (int row = 0; row < rows && by > 0; ++row) {
    float* at = cells + row * stride + kPad;
    std::copy_n(at + by, shared(from, to), at);
  }
}

}  // namespace

int64_t RowTables::stride(const Plan& plan, const TablePlan& table) {
  if (table.is_gated()) return table.gated_stride();
  if (table.at != nullptr) return round_up(table.window.width + 2 * kPad, kLanes);
  return slides(plan, table) ? kSlidingCells + 2 * kPad : plan.cell_stride(table.window);
}

RowTables::Sums::Sums(const Plan& plan, const TermGradients& wants, SumMemory& memory)
    : TablesSums(plan.row_tables, wants.row_tables, plan.p.group(), memory) {
  for (size_t n = 0; n < plan.row_tables.size(); ++n) {
    added.push_back(memory.doubles(wanted(wants.row_tables[n].added),
                                   plan.p.group() * plan.row_tables[n].rank));
  }
}

RowTables::RowTables(const Plan& plan, Workspace& memory) : Term(plan) {
  for (const TablePlan& table : plan.row_tables) {
    const int64_t factors = kRows * table.padded_rank;
    const int64_t cells = (table.is_gated() ? kGroup : kRows) * stride(plan, table);
    Table& own = tables_.emplace_back();
    own.factor = memory.take<float>(factors);
    own.cells = memory.take<float>(table.is_gated() ? 0 : cells);
    own.factor_gradient = memory.take<float>(plan.backward ? factors : 0);
    own.cell_gradients = memory.take<float>(plan.backward ? cells : 0);
    own.panel.stride = stride(plan, table);
    own.panel.cells = own.cells.get();
    own.far_cells = memory.take<float>(table.at == nullptr ? int64_t{2} * kRows : 0);
    if (table.at == nullptr) own.panel.far_cells = own.far_cells.get();
    own.panel.gradient = own.cell_gradients.get();
    own.panel.at = table.at;
    own.panel.once = table.at == nullptr && plan.p.positions.consecutive;
    if (!table.is_gated()) continue;
    own.gate_lanes = memory.take<float>(plan.backward ? kRows * kLanes : 0);
    own.gate_sums = memory.take<double>(plan.backward ? kRows : 0);
    std::fill_n(own.cell_gradients.get(), own.cell_gradients.size(), 0.0f);
    std::fill_n(own.factor.get(), own.factor.size(), 0.0f);
    own.panel.lo = table.window.lo;
    own.panel.width = table.window.width;
    own.panel.cells = table.gated.get();
    own.panel.gate = own.factor.get();
    own.panel.gate_sums = own.gate_lanes.get();
    own.panel.takes_turns = true;
    own.panel.once = false;
  }
}

void RowTables::attach_gated(const Block& block, int64_t n) {
  static constexpr int64_t kOneHead[kRows] = {};
  const TablePlan& table = plan_.row_tables[n];
  Table& own = tables_[n];
  own.panel.row_of = table.heads == 1 ? kOneHead : block.head;
  float* gates = own.factor.get();
  std::fill(gates + block.rows, gates + round_up(block.rows, kGroup), 0.0f);
  if (table.at == nullptr) own.panel.write_far_cells(block.rows, own.far_cells.get());
  std::fill_n(own.gate_lanes.get(), own.gate_lanes.size(), 0.0f);
  std::fill_n(own.gate_sums.get(), own.gate_sums.size(), 0.0);
}

void RowTables::attach(Block& block, const float* queries) {
  for (size_t n = 0; n < tables_.size(); ++n) {
    const TablePlan& table = plan_.row_tables[n];
    Table& own = tables_[n];
    own.cut = {};
    const RowTable& term = plan_.p.terms.row_tables[n];
    load_row_factors(plan_, table, term.factor, block, queries, own.factor.get());
    std::fill_n(own.factor_gradient.get(), own.factor_gradient.size(), 0.0f);
    if (table.is_gated()) {
      attach_gated(block, n);
    } else {
      own.cuts = GroupCuts(block, table);
      own.seen = seen_cells(block, table);
    }
    block.scores.push_back(own.panel);
  }
}

Cut RowTables::reach(const Block& block, int64_t n, int64_t t, int64_t count) const {
  const TablePlan& table = plan_.row_tables[n];
  if (!slides(plan_, table)) return table.multiplied(seen_cells(block, table));
  const Cut read = plan_.cells_of_tiles(table.window, block, t, count);
  const int64_t from = read.first / kTile * kTile;
  return {from, std::min(table.window.width, round_up(read.end(), kTile)) - from};
}

void RowTables::leave(const BlockGradients& rows, int64_t t, int64_t count, const Sums& sums) {
  for (size_t n = 0; n < tables_.size(); ++n) {
    if (plan_.row_tables[n].is_gated()) {
      add_gate_sums(rows.block, n);
      continue;
    }
    const Cut to = reach(rows.block, n, t, count);
    if (to != tables_[n].cut) leave_cells(rows, n, to, sums);
  }
}

void RowTables::before(Block& block, int64_t t, int64_t count) {
  for (size_t n = 0; n < tables_.size(); ++n) {
    const TablePlan& table = plan_.row_tables[n];
    Table& own = tables_[n];
    if (table.is_gated()) continue;
    const Cut to = reach(block, n, t, count);
    if (to == own.cut) continue;
    const int64_t stride = own.panel.stride, kept = shared(own.cut, to);
    move_shared(own.cut, to, block.rows, own.cells.get(), stride);
    for_each_head(block, [&](int64_t head, int row, int rows) {
      float* cells = own.cells.get() + row * stride;
      table_products(plan_.kernels, table, head, rows, own.factor.get() + row * table.padded_rank,
                     table.padded_rank, {to.first + kept, to.width - kept}, own.cuts,
                     cells + kPad + kept, stride);
      fill_pads(plan_.kernels, table, rows, to, cells, stride);
    });
    // Of pads that are filled, and of others, which no visible pair reads.
    for (int row = 0; row < round_up(block.rows, kGroup) && table.at == nullptr; ++row) {
      const float* left = own.cells.get() + row * stride;
      own.far_cells[row] = row < block.rows ? left[0] : 0.0f;
      own.far_cells[kRows + row] = row < block.rows ? left[kPad + to.width] : 0.0f;
    }
    own.cut = to;
    Panel& panel = block.scores[plan_.biases.size() + n];
    panel.lo = table.window.lo + to.first;
    panel.width = to.width;
  }
}

// Moves the gradients of the cells that `to` does not hold into the table's and the factor's, the
// others to where `to` has them.
void RowTables::leave_cells(const BlockGradients& rows, int64_t n, const Cut& to,
                            const Sums& sums) {
  const Block& block = rows.block;
  const TablePlan& table = plan_.row_tables[n];
  const Table& own = tables_[n];
  const Cut& from = own.cut;
  const int64_t stride = own.panel.stride, rank = table.padded_rank, kept = shared(from, to);
  float* cells = own.cell_gradients.get();
  if (from.width > 0) fold_pads(plan_.kernels, table, block.rows, from, cells, stride);
  if (from.width > kept) {
    const Cut gone = fold_runs(table, block.rows, {from.first, from.width - kept}, cells, stride);
    sums.tables[n].add(plan_.kernels, table, rows.g, gone, own.cuts, block.rows, cells, stride,
                       own.factor.get(), rank);
    const auto add = [&](const Cut& some, const GroupCuts& cuts, bool accumulate) {
      add_table_rows(plan_.kernels, table, block.head[0], some, cuts, block.rows,
                     cells + some.first - gone.first, stride, own.factor_gradient.get(), rank,
                     accumulate);
    };
    if (slides(plan_, table)) {
      add(gone, own.cuts, true);
    } else {  // all leave at once
      add(table.by_runs() ? gone : own.seen, GroupCuts(), false);
    }
  }
  move_shared(from, to, block.rows, cells, stride);
  CancelTicks tick;
  for (int row = 0; row < block.rows; ++row) {
    tick(to.width / kLanes);
    std::fill_n(cells + row * stride, kPad, 0.0f);
    std::fill_n(cells + row * stride + kPad + kept, to.width - kept + kPad, 0.0f);
  }
}

// Sums of lanes join those of the row, before they are long.
void RowTables::add_gate_sums(const Block& block, int64_t n) {
  Table& own = tables_[n];
  for (int row = 0; row < block.rows; ++row) {
    float* lanes = own.gate_lanes.get() + row * kLanes;
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      own.gate_sums[row] += static_cast<double>(std::exchange(lanes[lane], 0.0f));
    }
  }
}

// The gradients of the cells go to the table's, those of the gates to the factor's.
void RowTables::finish_gated(const BlockGradients& rows, int64_t n, const Sums& sums) {
  const Block& block = rows.block;
  const TablePlan& table = plan_.row_tables[n];
  Table& own = tables_[n];
  add_gate_sums(block, n);
  for (int row = 0; row < block.rows; ++row) {
    own.factor_gradient[row] = static_cast<float>(own.gate_sums[row]);
  }
  const int64_t stride = own.panel.stride, width = table.window.width;
  float* cells = own.cell_gradients.get();
  fold_pads(plan_.kernels, table, kGroup, {0, width}, cells, stride);
  const Cut touched = table.at == nullptr ? table.window.cut(block.range) : Cut{0, width};
  float* to = sums.tables[n].cells;
  if (to != nullptr) to = sums.tables[n].at(table, rows.g, touched.first);
  in_pieces(touched.width, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      float* from = cells + kPad + touched.first + c;
      float sum = 0.0f;
      for (int64_t r = 0; r < kGroup; ++r) sum += std::exchange(from[r * stride], 0.0f);
      if (to != nullptr) to[c] += sum;
    }
  });
  for (int64_t r = 0; r < kGroup; ++r) {
    std::fill_n(cells + r * stride, kPad, 0.0f);
    std::fill_n(cells + r * stride + kPad + width, kPad, 0.0f);
  }
}

void RowTables::finish(const BlockGradients& rows, const Sums& sums) {
  const Block& block = rows.block;
  for (size_t n = 0; n < tables_.size(); ++n) {
    if (plan_.row_tables[n].is_gated()) finish_gated(rows, n, sums);
    if (tables_[n].cut.width > 0) leave_cells(rows, n, {}, sums);
    double* added = sums.added[n];
    if (added != nullptr) added += rows.g * plan_.row_tables[n].rank;
    for (int row = 0; row < block.rows; ++row) {
      finish_row(block, n, row, added, rows.dq + row * plan_.Dp, rows.to.row_tables[n].factor);
    }
  }
}

void RowTables::finish_row(const Block& block, int64_t n, int row, double* added, float* dq,
                           std::vector<double>& factor) const {
  const TablePlan& table = plan_.row_tables[n];
  const RowTable& term = plan_.p.terms.row_tables[n];
  const float* da = tables_[n].factor_gradient.get() + row * table.padded_rank;
  for (int64_t d = 0; added != nullptr && d < table.rank; ++d) {
    added[d] += table.scale * static_cast<double>(da[d]) * term.added.multiplier;
  }
  send_row_factor(plan_, table, term.factor, block, row, da, dq, factor);
}

void RowTables::reduce(const Plan& plan, const Sums& sums, int64_t kv_head, TermGradients& to) {
  for (size_t n = 0; n < plan.row_tables.size(); ++n) {
    const int64_t numbers = plan.p.group() * plan.row_tables[n].rank;
    for (int64_t d = 0; sums.added[n] != nullptr && d < numbers; ++d) {
      to.row_tables[n].added[kv_head * numbers + d] += sums.added[n][d];
    }
  }
}

}  // namespace relpos
