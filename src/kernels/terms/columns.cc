#include "kernels/terms/columns.h"

#include <algorithm>

namespace relpos {
namespace {

// Entries of row - key, and a vector beyond them.
constexpr int64_t kOffsets = kTile + kRows + 2 * kLanes;

// Products of a row: of every run where positions are explicit, else of those that a block and a tile
// may meet; rounded out on both sides, and a vector beyond them.
int64_t product_stride(const Plan& plan) {
  int64_t widest = 0;
  for (const ColumnPlan& term : plan.columns) {
    const int64_t runs = term.entries;
    widest = std::max(widest, plan.p.positions.consecutive ? std::min(runs, kOffsets) : runs);
  }
  return widest == 0 ? 0 : round_up(widest, kLanes) + 3 * kLanes;
}

// One past the runs after `run` whose products are added up together: those of kTogether classes. A
// product cuts long sums into chains, and where runs count from depends on the distances of the whole
// batch, which no bit of a batch row may.
int64_t group_end(const TablePlan& table, int64_t run) {
  constexpr int64_t kTogether = 64;
  const auto group = [&](int64_t n) {
    return (table.classes[static_cast<size_t>(n)] + kTogether) / kTogether;
  };
  int64_t end = run + 1;
  while (end < table.entries && group(end) == group(run)) ++end;
  return end;
}

int64_t key_position(const KeyTile& tile, int64_t key) {
  return tile.run ? tile.first_position + key : tile.positions[key];
}

}  // namespace

ColumnTables::KeySums::KeySums(const Plan& plan, const TermGradients& wants, SumMemory& memory) {
  for (size_t n = 0; n < plan.columns.size(); ++n) {
    const bool by_key = !plan.p.terms.column_tables[n].factor.view.given();
    factors.push_back(memory.by_key(by_key || wanted(wants.column_tables[n].factor), 1,
                                    plan.columns[n].padded_rank));
  }
}

ColumnTables::ColumnTables(const Plan& plan, Workspace& memory)
    : Term(plan), stride_(product_stride(plan)) {
  if (plan.columns.empty()) return;
  extra_ = memory.take<float>(kRows * kTile);
  products_ = memory.zeros<float>(kTile * stride_);
  runs_ = memory.take<int32_t>(kOffsets);
}

ColumnTables::Reach ColumnTables::reach(const ColumnPlan& term, const Block& block,
                                        const KeyTile& tile, int row, int rows, bool sums) {
  const auto [q_low, q_high] =
      std::minmax_element(block.position + row, block.position + row + rows);
  int64_t k_low = tile.first_position, k_high = tile.first_position + kTile - 1;
  if (!tile.run) {
    k_low = *std::min_element(tile.positions, tile.positions + kTile);
    k_high = *std::max_element(tile.positions, tile.positions + kTile);
  }
  const int64_t low = term.runs(k_low - *q_high), high = term.runs(k_high - *q_low);
  Reach at;
  at.q_low = *q_low;
  at.q_high = *q_high;
  at.first = low / kLanes * kLanes;
  at.width = round_up(high + 1 - at.first, kLanes);
  if (low == high) {
    at.single = low - at.first;
    if (!sums) return at;
  }
  at.ordered = tile.run;
  for (int r = row + 1; r < row + rows && at.ordered; ++r) {
    at.ordered = block.position[r] == block.position[r - 1] + 1;
  }
  return at;
}

void ColumnTables::write_runs(const ColumnPlan& term, const Reach& at, const KeyTile& tile,
                              int rows) {
  const int64_t read = kTile + rows - 1;
  term.runs.write_down(tile.first_position + kTile - 1 - at.q_low, read, at.first, runs_.get());
  // Lanes past the last row read the run of the farthest distance that a row has.
  std::fill_n(runs_.get() + read, round_up(rows, kLanes) - rows + 1, runs_[read - 1]);
}

int64_t ColumnTables::run(const ColumnPlan& term, const Reach& at, const Block& block,
                          const KeyTile& tile, int row, int64_t key) {
  return term.runs(key_position(tile, key) - block.position[row]) - at.first;
}

void ColumnTables::multiply(const ColumnPlan& term, int64_t head, const KeyTile& tile,
                            const Reach& at) {
  const TablePlan& table = term;
  const float* panels = table.head_panels(head);
  for_each_strip(term, at, tile, [&](int64_t key, int64_t keys, int64_t first, int64_t last) {
    const int64_t end = round_up(last, kLanes);
    for (int64_t from = first / kLanes * kLanes; from < end;) {
      const int64_t panel = from / kTile, to = std::min(end, (panel + 1) * kTile);
      plan_.kernels.gemm(keys, to - from, table.rank,
                         tile.memory + term.factors_at + key * table.padded_rank, table.padded_rank,
                         1, panels + panel * table.rank * kTile + from % kTile, kTile,
                         products_.get() + key * stride_ + (from - at.first), stride_, false);
      from = to;
    }
  });
}

void ColumnTables::before_tile(Block& block, const KeyTile& tile) {
  if (plan_.columns.empty()) return;
  // Far from the diagonal every pair of a key reads one run, and all rows share the sums.
  bool shared = block.head[0] == block.head[block.rows - 1];
  for (const ColumnPlan& term : plan_.columns) {
    shared = shared && reach(term, block, tile, 0, block.rows, false).single >= 0;
  }
  block.extra = extra_.get();
  block.extra_stride = shared ? 0 : kTile;
  std::fill_n(extra_.get(), (shared ? 1 : kRows) * kTile, 0.0f);
  for (const ColumnPlan& term : plan_.columns) {
    for_each_head(block, [&](int64_t head, int row, int rows) {
      const Reach at = reach(term, block, tile, row, rows, false);
      multiply(term, head, tile, at);
      float* extra = extra_.get() + (shared ? 0 : row * kTile);
      if (at.ordered) {
        write_runs(term, at, tile, rows);
        plan_.kernels.read_columns(rows, products_.get(), stride_, runs_.get(), extra);
        return;
      }
      for (int r = 0; r < (shared ? 1 : rows); ++r) {
        for (int64_t key = 0; key < kTile; ++key) {
          const int64_t column =
              at.single >= 0 ? at.single : run(term, at, block, tile, row + r, key);
          extra[r * kTile + key] += products_[key * stride_ + column];
        }
      }
    });
  }
}

void ColumnTables::sum_runs(const ColumnPlan& term, const Reach& at, const Block& block,
                            const KeyTile& tile, const float* ds) {
  for (int64_t key = 0; key < kTile; ++key) {
    std::fill_n(products_.get() + key * stride_, at.width, 0.0f);
  }
  if (at.ordered) {
    write_runs(term, at, tile, block.rows);
    plan_.kernels.add_columns(block.rows, ds, runs_.get(), products_.get(), stride_);
    return;
  }
  if (at.single >= 0) {
    float total[kTile] = {};
    for (int64_t n = 0; n < block.rows * kTile; ++n) total[n % kTile] += ds[n];
    for (int64_t key = 0; key < kTile; ++key) products_[key * stride_ + at.single] = total[key];
    return;
  }
  for (int64_t n = 0; n < block.rows * kTile; ++n) {
    const int row = static_cast<int>(n / kTile);
    const int64_t key = n % kTile;
    products_[key * stride_ + run(term, at, block, tile, row, key)] += ds[n];
  }
}

void ColumnTables::add_to_table(const ColumnPlan& term, const Reach& at, const KeyTile& tile,
                                float* own) {
  constexpr int64_t kStrip = int64_t{2} * kGroup;
  const int64_t rank = term.padded_rank, all = at.first + at.width;
  int64_t begin = 0, end = at.ordered ? 0 : kTile;  // the keys of which some row reads these runs
  for (int64_t from = at.first; from < all;) {
    const int64_t to = at.ordered ? std::min(from + kStrip, all) : all;
    if (at.ordered) {
      while (begin < kTile && last_run(term, at, tile, begin) < from) ++begin;
      while (end < kTile && first_run(term, at, tile, end) < to) ++end;
    }
    if (begin < end) {
      relpos::multiply(plan_.kernels, tile.factors_finite, to - from, rank, end - begin,
                       products_.get() + begin * stride_ + (from - at.first), 1, stride_,
                       tile.memory + term.factors_at + begin * rank, rank,
                       own + (from - at.first) * rank, rank, true);
    }
    from = to;
  }
}

void ColumnTables::add_to_factors(const ColumnPlan& term, int64_t head, const Reach& at,
                                  const KeyTile& tile, float* factors) {
  const int64_t rank = term.padded_rank;
  for_each_strip(term, at, tile, [&](int64_t key, int64_t keys, int64_t first, int64_t last) {
    for (int64_t from = first; from < last;) {
      const int64_t end = std::min(group_end(term, from), last);
      relpos::multiply(plan_.kernels, term.finite, keys, rank, end - from,
                       products_.get() + key * stride_ + (from - at.first), stride_, 1,
                       term.head_rows(head, from), rank, factors + key * rank, rank, true);
      from = end;
    }
  });
}

void ColumnTables::after_tile(const BlockGradients& rows, const KeyTile& tile, int64_t t,
                              const Sums& sums, const KeySums& keys) {
  const Block& block = rows.block;
  const BackwardState& state = rows.state;
  if (plan_.columns.empty() || !state.take_turn(state.sums, t)) return;
  for (size_t n = 0; n < plan_.columns.size(); ++n) {
    const ColumnPlan& term = plan_.columns[n];
    const TablePlan& table = term;
    const TableSums& own = sums.tables[n];
    float* factors = keys.factors[n];
    const int64_t rank = table.padded_rank;
    if (own.cells == nullptr && factors == nullptr) continue;
    const Reach at = reach(term, block, tile, 0, block.rows, true);
    sum_runs(term, at, block, tile, state.ds);
    if (own.cells != nullptr) {
      add_to_table(term, at, tile, own.at(table, rows.g, at.first));
    }
    if (factors != nullptr) {
      add_to_factors(term, block.head[0], at, tile, factors + t * kTile * rank);
    }
  }
}

void ColumnTables::finish_key(const Plan& plan, const KeySums& sums, int64_t pair, int64_t j,
                              float* dk, float* /*key*/, TermGradients& to) {
  for (size_t n = 0; n < plan.columns.size(); ++n) {
    const TablePlan& table = plan.columns[n];
    const TermData& factor = plan.p.terms.column_tables[n].factor;
    const float* own = sums.factors[n];
    for (int64_t d = 0; own != nullptr && d < table.rank; ++d) {
      const double sum = static_cast<double>(own[j * table.padded_rank + d]) * table.scale;
      if (factor.view.given()) {
        const int64_t at = (pair * plan.p.keys + j) * table.rank + d;
        to.column_tables[n].factor[at] = sum * factor.multiplier;
      } else {
        dk[d] += static_cast<float>(sum);
      }
    }
  }
}

}  // namespace relpos
