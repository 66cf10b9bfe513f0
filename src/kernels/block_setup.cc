#include "kernels/block_setup.h"

#include <algorithm>

namespace relpos {
namespace {

// Cells of a row that sliding needs: those of some tiles and a block's rows, in whole panels.
constexpr int64_t kSlidingCells = round_up(kTilesAtATime * kTile + kRows - 1, kTile) + kTile;

}  // namespace

BlockScratch::BlockScratch(const Plan& plan, const TileKernels& kernels)
    : plan_(plan), kernels_(kernels), raw_(kRows * plan.Dp), q_(kRows * plan.Dp) {
  block.problem = &plan.p;
  block.D = plan.D;
  block.Dp = plan.Dp;
  block.Dv = plan.Dv;
  block.Dvp = plan.Dvp;
  block.q = q_.get();
  if (!plan.log_decay.empty()) {
    decayed_ = Buffer<float>(kRows * plan.Dp);
    decay_ = Buffer<float>(plan.Dp);
  }
  for (const TablePlan& table : plan.row_tables) {
    RowTableState state;
    state.factor = Buffer<float>(kRows * table.padded_rank);
    state.cells = Buffer<float>(kRows * row_stride(plan, table));
    row_tables.push_back(std::move(state));
  }
}

void BlockScratch::decay_queries(const KeyTile& tile) {
  if (plan_.log_decay.empty()) return;
  std::fill_n(decay_.get(), plan_.Dp, 1.0f);
  plan_.decay(tile.first_position - plan_.query_anchor(block.batch, block.index[0]), decay_.get());
  for (int row = 0; row < padded_rows(); ++row) {
    for (int64_t d = 0; d < plan_.Dp; ++d) {
      decayed_[row * plan_.Dp + d] = q_[row * plan_.Dp + d] * decay_[d];
    }
  }
  block.q = decayed_.get();
}

int64_t BlockScratch::floats(const Plan& plan) {
  int64_t sum = kRows * (2 * plan.Dp) + (plan.log_decay.empty() ? 0 : (kRows + 1) * plan.Dp);
  for (const TablePlan& table : plan.row_tables) {
    sum += kRows * (table.padded_rank + row_stride(plan, table));
  }
  return sum;
}

int64_t BlockScratch::max_cut(const Plan& plan, const Window& window) {
  if (!plan.p.positions.consecutive) return window.width;
  return std::min(window.width, plan.p.keys + kRows);
}

int64_t BlockScratch::cell_stride(const Plan& plan, const Window& window) {
  return round_up(max_cut(plan, window) + 2 * kPad, kLanes);
}

// Products that runs share are computed once a block: a window of them would compute many anew.
bool BlockScratch::slides(const Plan& plan, const TablePlan& table) {
  return plan.p.positions.consecutive && table.runs.index.empty() &&
         table.window.width > kSlidingCells;
}

int64_t BlockScratch::row_stride(const Plan& plan, const TablePlan& table) {
  return slides(plan, table) ? kSlidingCells + 2 * kPad : cell_stride(plan, table.window);
}

void BlockScratch::begin(int64_t batch) {
  block.batch = batch;
  block.rows = 0;
  block.scores.clear();
  block.ramps.clear();
  block.values.clear();
}

BlockScratch::Cut BlockScratch::cut(const Window& window, std::pair<int64_t, int64_t> range) {
  const int64_t first = std::clamp<int64_t>(range.first - window.lo, 0, window.width - 1);
  const int64_t last = std::clamp<int64_t>(range.second - window.lo, first, window.width - 1);
  return {first, last - first + 1};
}

BlockScratch::Cut BlockScratch::reach(size_t n, int64_t t, int64_t count) const {
  const TablePlan& table = plan_.row_tables[n];
  if (!slides(plan_, table)) return cut(table.window);
  const auto [first, last] = std::minmax_element(block.position, block.position + block.rows);
  const int64_t end = std::min(plan_.p.keys, (t + count) * kTile);
  const auto seen = [&](int64_t distance) {
    return std::clamp(distance, range_.first, range_.second);
  };
  const Positions& at = plan_.p.positions;
  const Cut read = cut(table.window, {seen(at.key(block.batch, t * kTile) - *last),
                                      seen(at.key(block.batch, end - 1) - *first)});
  const int64_t from = read.first / kTile * kTile;
  return {from, std::min(table.window.width, round_up(read.end(), kTile)) - from};
}

void BlockScratch::move_shared(const Cut& from, const Cut& to, int rows, float* cells,
                               int64_t stride) {
  const int64_t by = to.first - from.first;
  for (int row = 0; row < rows && by > 0; ++row) {
    float* at = cells + row * stride + kPad;
    std::copy_n(at + by, shared(from, to), at);
  }
}

void BlockScratch::slide(int64_t t, int64_t count) {
  for (size_t n = 0; n < row_tables.size(); ++n) {
    const TablePlan& table = plan_.row_tables[n];
    RowTableState& state = row_tables[n];
    const Cut to = reach(n, t, count);
    if (to == state.cut) continue;
    const int64_t stride = row_stride(plan_, table), rank = table.padded_rank;
    const int64_t kept = shared(state.cut, to);
    move_shared(state.cut, to, block.rows, state.cells.get(), stride);
    for_each_head(block, [&](int64_t head, int row, int rows) {
      float* cells = state.cells.get() + row * stride;
      table_products(kernels_, table, head, rows, state.factor.get() + row * rank, rank,
                     to.first + kept, to.width - kept, cells + kPad + kept, stride);
      fill_pads(table, rows, to.width, cells, stride);
    });
    state.cut = to;
    Panel& panel = block.scores[plan_.biases.size() + n];
    panel.lo = table.window.lo + to.first;
    panel.width = to.width;
  }
}

void BlockScratch::attach_biases() {
  const Problem& p = plan_.p;
  int64_t nearest[kRows] = {};
  bool by_pair = false;  // a row sees far keys on both sides: slopes are evaluated pair by pair
  block.shifted = false;
  std::fill_n(block.shift, block.rows, 0);
  std::fill_n(block.score_shift, block.rows, 0.0);
  std::fill_n(block.key_bias, kRows, nullptr);
  for (int row = 0; row < block.rows && plan_.shifts.active(); ++row) {
    const RowShift shift = plan_.shifts.of(block.batch, block.head[row], block.index[row]);
    nearest[row] = shift.distance;
    by_pair = by_pair || shift.both_sides;
    block.shift[row] = shift.both_sides ? 0 : shift.distance;
    block.shifted = block.shifted || block.shift[row] != 0;
    block.score_shift[row] = shift.total();
    block.key_shift[row] = shift.keys * kLog2e;
    if (plan_.key_bias.size() == 0) continue;
    const int64_t batch = plan_.key_bias_rows == 1 ? 0 : block.batch;
    block.key_bias[row] =
        plan_.key_bias.get() + (batch * p.heads + block.head[row]) * plan_.tiles * kTile;
  }
  for (size_t n = 0; n < plan_.biases.size(); ++n) {
    const BiasPlan& bias = plan_.biases[n];
    const bool ramp = bias.sloped && (bias.ramp || by_pair);
    Panel panel;
    panel.lo = bias.window.lo;
    panel.width = bias.window.width;
    panel.shift = bias.sloped && block.shifted ? block.shift : nullptr;
    for (int row = 0; row < block.rows && !ramp; ++row) {
      panel.cells[row] = bias.cells.get() + block.head[row] * bias.row_size();
    }
    block.scores.push_back(panel);
    if (!ramp) continue;
    const TermData& slopes = p.terms.biases[bias.term].slopes;
    Ramp own;
    own.bias = n;
    for (int row = 0; row < block.rows; ++row) {
      own.past[row] = slopes.view.at({0, block.head[row]}) * slopes.multiplier * kLog2e;
      own.future[row] = slopes.view.at({1, block.head[row]}) * slopes.multiplier * kLog2e;
      own.shift[row] = nearest[row] == 0 ? 0.0 : own(row, nearest[row]);
    }
    block.ramps.push_back(own);
  }
}

void BlockScratch::load_queries() {
  block.q = q_.get();
  const Problem& p = plan_.p;
  range_ = plan_.range;
  if (p.positions.consecutive) {
    int64_t low = INT64_MAX, high = INT64_MIN;
    for (int row = 0; row < block.rows; ++row) {
      if (block.lo[row] >= block.hi[row]) continue;
      low = std::min(low, block.lo[row] - block.position[row]);
      high = std::max(high, block.hi[row] - 1 - block.position[row]);
    }
    const int64_t first = p.positions.key(block.batch, 0);
    range_ = low <= high ? std::pair{first + low, first + high}
                         : std::pair{plan_.range.first, plan_.range.first};  // that may be any long
  }
  const auto scale = static_cast<float>(p.scale * kLog2e);
  const bool in_place = p.terms.rotations.empty() && plan_.row_tables.empty() &&
                        p.terms.query_added.empty() && plan_.D == plan_.Dp &&
                        Plan::rows_in_place(p.query, block.batch, 0, 0) != nullptr;
  for (int row = 0; row < padded_rows(); ++row) {
    float* raw = raw_.get() + row * plan_.Dp;
    float* q = q_.get() + row * plan_.Dp;
    if (row >= block.rows) {
      std::fill_n(q, plan_.Dp, 0.0f);
      block.position[row] = 0;
      continue;
    }
    if (!in_place) {
      Plan::load_row(p.query, block.batch, block.head[row], block.index[row], plan_.D, plan_.Dp,
                     raw);
      std::copy_n(raw, plan_.Dp, q);
      if (plan_.query_added.size() > 0) {
        const float* added = plan_.query_added.get() + block.head[row] * plan_.Dp;
        for (int64_t d = 0; d < plan_.D; ++d) q[d] += added[d];
      }
      plan_.rotate_query(block.batch, block.index[row], q);
    }
  }

  if (in_place) {
    for_each_head(block, [&](int64_t head, int first, int rows) {
      const float* from = Plan::rows_in_place(p.query, block.batch, head, block.index[first]);
      kernels_.scale(rows, plan_.D, from, p.query.strides[2], &scale, 0,
                     q_.get() + first * plan_.Dp, plan_.Dp);
    });
  } else {
    kernels_.scale(block.rows, plan_.Dp, q_.get(), plan_.Dp, &scale, 0, q_.get(), plan_.Dp);
  }

  attach_biases();

  for (size_t n = 0; n < plan_.row_tables.size(); ++n) {
    const TablePlan& table = plan_.row_tables[n];
    const RowTable& term = p.terms.row_tables[n];
    RowTableState& state = row_tables[n];
    state.cut = {};
    const auto s = static_cast<float>(table.scale * kLog2e);
    for (int row = 0; row < block.rows; ++row) {
      float* a = state.factor.get() + row * table.padded_rank;
      if (term.factor.view.given()) {
        Plan::load_row(term.factor.view, block.batch, block.head[row], block.index[row], table.rank,
                       table.padded_rank, a);
        for (int64_t d = 0; d < table.rank; ++d) a[d] *= static_cast<float>(term.factor.multiplier);
      } else {
        std::copy_n(raw_.get() + row * plan_.Dp, table.padded_rank, a);
      }
      for (int64_t d = 0; d < table.rank; ++d) {
        if (term.added.view.given()) {
          a[d] +=
              static_cast<float>(term.added.view.at({block.head[row], d}) * term.added.multiplier);
        }
        a[d] *= s;
      }
    }
    const int64_t stride = row_stride(plan_, table);
    Panel panel;
    for (int row = 0; row < block.rows; ++row) panel.cells[row] = state.cells.get() + row * stride;
    block.scores.push_back(panel);
  }
}

}  // namespace relpos
