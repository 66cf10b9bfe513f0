#include "kernels/terms/gradient_sums.h"

#include <algorithm>
#include <utility>

#include "base/zeros.h"
#include "kernels/block/load_rows.h"
#include "kernels/terms/biases.h"
#include "kernels/terms/columns.h"
#include "kernels/terms/sinks.h"

namespace relpos {

namespace {

// How many numbers the frequencies of one head have.
int64_t turn_numbers(const Rotation& rotation) {
  return rotation.head_frequency.view.shape[0] * (rotation.dims / 2);
}

// Of gradients, those of a kind are summed where one of them is wanted.
template <typename All, typename Empty>
bool any_wanted(const All& all, Empty&& empty) {
  return !std::all_of(all.begin(), all.end(), empty);
}

// The frequencies' gradients, summed in `parts` parts.
void add_turns(const Plan& plan, const std::vector<double*>& sums, int64_t parts, int64_t kv_head,
               TermGradients& to) {
  for (size_t t = 0; t < sums.size(); ++t) {
    if (sums[t] == nullptr) continue;
    const Rotation& rotation = plan.p.terms.rotations[t];
    const TermData& data = rotation.head_frequency;
    const int64_t heads = data.view.shape[1], pairs = rotation.dims / 2;
    const int64_t numbers = turn_numbers(rotation), head = heads == 1 ? 0 : kv_head;
    CancelTicks tick;
    for (int64_t n = 0; n < numbers; ++n) {
      tick(parts);
      double sum = 0.0;
      for (int64_t part = 0; part < parts; ++part) sum += sums[t][part * numbers + n];
      to.rotations[t].head_frequency[(n / pairs * heads + head) * pairs + n % pairs] +=
          sum * data.multiplier;
    }
  }
}

// What key j of a tile adds to the gradients of what it turns by, dk being that of the turned key.
void add_key_turns(const Plan& plan, const KeySums& sums, int64_t b, int64_t kv_head, int64_t j,
                   const float* dk, float* key, TermGradients& to) {
  load_row(plan.p.key, b, kv_head, j, plan.D, plan.D, key);
  for (size_t n = 0; n < sums.turns.size(); ++n) {
    plan.rotations.add_table_gradients(n, false, b, kv_head, j, key, dk, to.rotations[n]);
    if (sums.turns[n] == nullptr) continue;
    double* own = sums.turns[n] + j / kTile * turn_numbers(plan.p.terms.rotations[n]);
    plan.rotations.add_gradients(n, false, b, kv_head, j, key, dk, own);
  }
}

}  // namespace

float* SumMemory::floats(bool wanted, int64_t n, Workspace& memory) {
  if (!wanted) return nullptr;
  return floats_.emplace_back(memory.take<float>(n)).get();
}

double* SumMemory::doubles(bool wanted, int64_t n, Workspace& memory) {
  if (!wanted) return nullptr;
  return doubles_.emplace_back(memory.take<double>(n)).get();
}

Sums::Sums(const Plan& plan, const TermGradients& wants, Workspace& memory) {
  const int64_t group = plan.p.group();
  for (const BiasPlan& bias : plan.biases) {
    const TermGradients::Bias& gradient = wants.biases[bias.term];
    const bool wanted = !(bias.sloped ? gradient.slopes : gradient.table).empty();
    biases.push_back({doubles(wanted && !bias.ramp, group * bias.row_size(), memory),
                      doubles(wanted && bias.sloped, 2 * group, memory)});
  }
  const auto of_table = [&](const std::vector<double>& gradient, const TablePlan& table) {
    return TableSums{floats(!gradient.empty(), TableSums::size(table, group), memory)};
  };
  for (size_t n = 0; n < plan.row_tables.size(); ++n) {
    const TablePlan& table = plan.row_tables[n];
    const auto& [own, factor, added] = wants.row_tables[n];
    rows.push_back({of_table(own, table), doubles(!added.empty(), group * table.rank, memory)});
  }
  for (size_t n = 0; n < plan.value_tables.size(); ++n) {
    values.push_back(of_table(wants.value_tables[n].table, plan.value_tables[n]));
  }
  for (size_t n = 0; n < plan.columns.size(); ++n) {
    columns.push_back(of_table(wants.column_tables[n].table, plan.columns[n].table));
  }
  query_added = doubles(any_wanted(wants.query_added, [](const auto& g) { return g.empty(); }),
                        group * plan.D, memory);
  for (size_t n = 0; n < wants.rotations.size(); ++n) {
    const bool wanted = !wants.rotations[n].head_frequency.empty();
    turns.push_back(doubles(wanted, wanted ? turn_numbers(plan.p.terms.rotations[n]) : 0, memory));
  }
  for (size_t n = 0; n < wants.sinks.size(); ++n) {
    const bool of_heads = plan.p.terms.sinks[n].view.rank == 1;
    sinks.push_back(doubles(of_heads && !wants.sinks[n].empty(), group, memory));
  }
}

void Sums::clear() {
  for (const Buffer<float>& sums : floats_) fill_zeros(sums.get(), sums.size());
  for (const Buffer<double>& sums : doubles_) fill_zeros(sums.get(), sums.size());
}

int64_t Sums::bytes(const Plan& plan) noexcept {
  int64_t floats = 0, doubles = 0;
  for (const BiasPlan& bias : plan.biases) {
    if (!bias.ramp) doubles += plan.p.group() * bias.row_size();
  }
  const auto add = [&](const TablePlan& table) {
    floats += TableSums::size(table, plan.p.group());
  };
  for (const TablePlan& table : plan.row_tables) add(table);
  for (const TablePlan& table : plan.value_tables) add(table);
  for (const ColumnPlan& column : plan.columns) add(column.table);
  return 4 * floats + 8 * doubles;
}

bool KeySums::of_terms(const TermGradients& wants) {
  return any_wanted(wants.key_biases, [](const auto& g) { return g.table.empty(); }) ||
         any_wanted(wants.rotations, [](const auto& g) { return g.head_frequency.empty(); });
}

KeySums::KeySums(const Plan& plan, const TermGradients& wants, int64_t blocks, Workspace& memory)
    : order(blocks), open_(plan.tiles) {
  const int64_t keys = plan.tiles * kTile, group = plan.p.group();
  dk = part(true, 1, keys, plan.Dp, memory);
  dv = part(true, 1, keys, plan.Dvp, memory);
  key_bias = part(any_wanted(wants.key_biases, [](const auto& g) { return g.table.empty(); }),
                  group, keys, 1, memory);
  for (size_t n = 0; n < plan.columns.size(); ++n) {
    const bool by_key = !plan.p.terms.column_tables[n].factor.view.given();
    factors.push_back(part(by_key || !wants.column_tables[n].factor.empty(), 1, keys,
                           plan.columns[n].table.padded_rank, memory));
  }
  for (size_t n = 0; n < wants.rotations.size(); ++n) {
    const bool wanted = !wants.rotations[n].head_frequency.empty();
    const int64_t numbers = wanted ? turn_numbers(plan.p.terms.rotations[n]) : 0;
    turns.push_back(doubles(wanted, plan.tiles * numbers, memory));
  }
}

float* KeySums::part(bool wanted, int64_t heads, int64_t keys, int64_t size, Workspace& memory) {
  float* sums = floats(wanted, heads * keys * size, memory);
  if (wanted) parts_.push_back({sums, heads, keys * size, kTile * size});
  return sums;
}

void KeySums::clear() {
  order.clear();
  std::fill(open_.begin(), open_.end(), uint8_t{0});
  for (const Buffer<double>& sums : doubles_) fill_zeros(sums.get(), sums.size());
}

void KeySums::open(int64_t t) {
  if (std::exchange(open_[t], uint8_t{1}) != 0) return;
  for (const Part& part : parts_) {
    for (int64_t h = 0; h < part.heads; ++h) {
      std::fill_n(part.sums + h * part.stride + t * part.tile, part.tile, 0.0f);
    }
  }
}

namespace {

// What a chunk has summed for the heads of a group.
void reduce_head(const Plan& plan, const Sums& sums, int64_t head, TermGradients& to) {
  const Problem& p = plan.p;
  const int64_t first = head * p.group();
  reduce_biases(plan, sums, head, to);
  reduce_sinks(plan, sums, head, to);
  for (size_t t = 0; t < plan.row_tables.size(); ++t) {
    const int64_t rank = plan.row_tables[t].rank;
    for (int64_t d = 0; sums.rows[t].added != nullptr && d < p.group() * rank; ++d) {
      to.row_tables[t].added[first * rank + d] += sums.rows[t].added[d];
    }
  }
  for (size_t t = 0; t < p.terms.query_added.size(); ++t) {
    const double by = p.terms.query_added[t].multiplier;
    for (int64_t d = 0; !to.query_added[t].empty() && d < p.group() * plan.D; ++d) {
      to.query_added[t][first * plan.D + d] += sums.query_added[d] * by;
    }
  }
}

}  // namespace

void reduce_terms(const Plan& plan, const std::vector<Sums>& sums, std::span<const KeySums> keys,
                  int64_t first_pair, int64_t pairs, int64_t chunks, int threads, Stopper& stopper,
                  TermGradients& to) {
  const Problem& p = plan.p;
  const int64_t count = pairs * chunks;
  const auto kv_head = [&](int64_t n) { return (first_pair + n / chunks) % p.kv_heads; };
  // The gradients of a head are its own, but those of frequencies that heads may share.
  parallel_for(std::min(pairs, p.kv_heads), threads, stopper, [&](int64_t first, int worker) {
    for (int64_t n = first; n < pairs && !stopper.stopped(worker); n += p.kv_heads) {
      const int64_t pair = first_pair + n, head = pair % p.kv_heads;
      for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        reduce_head(plan, sums[n * chunks + chunk], head, to);
      }
      if (keys.empty()) continue;
      reduce_key_biases(plan, keys[n].key_bias, pair / p.kv_heads, head, to);
    }
  });
  for (int64_t n = 0; n < pairs; ++n) {  // one pair after another, however many a wave has
    const int64_t head = kv_head(n * chunks);
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      add_turns(plan, sums[n * chunks + chunk].turns, 1, head, to);
    }
    if (!keys.empty()) add_turns(plan, keys[n].turns, plan.tiles, head, to);
  }
  const auto reduce = [&](const TablePlan& table, const TermData& data, double scale,
                          std::vector<double>& gradient, auto&& sums_of) {
    if (gradient.empty()) return;
    constexpr int64_t kEntries = 8;  // of a task, at least: all that read one row are in one task
    const std::vector<int64_t> order = table.by_class();
    const auto size = static_cast<int64_t>(order.size());
    const auto start = [&](int64_t task) {
      if (task == 0 || task * kEntries >= size) return std::min(size, task * kEntries);
      const int64_t row = table.classes[order[task * kEntries - 1]];
      const auto by_row = [&](int64_t of, int64_t entry) { return of < table.classes[entry]; };
      return std::upper_bound(order.begin(), order.end(), row, by_row) - order.begin();
    };
    parallel_for((size + kEntries - 1) / kEntries, threads, stopper, [&](int64_t task, int w) {
      const std::span own{order.begin() + start(task), order.begin() + start(task + 1)};
      for (int64_t n = 0; n < count && !stopper.stopped(w); ++n) {
        sums_of(sums[n]).reduce(table, data, kv_head(n), p.group(), scale, own, gradient);
      }
    });
  };
  // The factors that the sums of row and column tables hold are already times s log2(e).
  for (size_t t = 0; t < plan.row_tables.size(); ++t) {
    reduce(plan.row_tables[t], p.terms.row_tables[t].table, kLn2, to.row_tables[t].table,
           [t](const Sums& s) { return s.rows[t].table; });
  }
  for (size_t t = 0; t < plan.columns.size(); ++t) {
    reduce(plan.columns[t].table, p.terms.column_tables[t].table, kLn2, to.column_tables[t].table,
           [t](const Sums& s) { return s.columns[t]; });
  }
  for (size_t t = 0; t < plan.value_tables.size(); ++t) {
    reduce(plan.value_tables[t], p.terms.value_tables[t].table, 1.0, to.value_tables[t].table,
           [t](const Sums& s) { return s.values[t]; });
  }
}

KeyWriter::KeyWriter(const Plan& plan, int threads, Workspace& memory)
    : plan_(plan),
      rows_(memory.take<float>(
          plan.unit == nullptr ? 0 : threads * kTile * std::max(plan.Dp, plan.Dvp))),
      keys_(memory.take<float>(plan.rotations.trains() ? threads * plan.D : 0)) {}

float* KeyWriter::rows_of(float* sums, int64_t t, int64_t n, int worker) const {
  const int64_t padded = round_up(n, kLanes);
  sums += t * kTile * padded;
  if (plan_.unit == nullptr) return sums;
  float* rows = rows_.get() + worker * kTile * std::max(plan_.Dp, plan_.Dvp);
  alignas(64) float block[kTile * kTile];
  for (int64_t d = 0; d < n; d += kTile) {
    const int64_t some = std::min(kTile, n - d);
    plan_.kernels.transpose(sums + d * kTile, kTile, some, kTile, block);
    for (int64_t key = 0; key < kTile; ++key) {
      std::copy_n(block + key * kTile, some, rows + key * padded + d);
    }
  }
  return rows;
}

void KeyWriter::write(KeySums& sums, int64_t pair, int64_t t, int worker,
                      const ProblemGradients& gradients) const {
  const Problem& p = plan_.p;
  const int64_t Dp = plan_.Dp, Dvp = plan_.Dvp;
  const auto scale = static_cast<float>(plan_.key_gradient_scale());
  constexpr float kOne = 1.0f;
  const int64_t b = pair / p.kv_heads, kv_head = pair % p.kv_heads;
  const int64_t first = t * kTile, count = std::min(kTile, p.keys - first);
  sums.open(t);
  if (gradients.value.given()) {
    float* dv = rows_of(sums.dv, t, plan_.Dv, worker);
    store_scaled(plan_.kernels, gradients.value, b, kv_head, first, count, plan_.Dv, dv, Dvp, &kOne,
                 0);
  }
  float* dk = rows_of(sums.dk, t, plan_.D, worker);
  if (gradients.key.given() && plan_.rotations.none() && plan_.columns.empty()) {
    store_scaled(plan_.kernels, gradients.key, b, kv_head, first, count, plan_.D, dk, Dp, &scale,
                 0);
    return;
  }
  plan_.kernels.scale(count, Dp, dk, Dp, &scale, 0, dk, Dp);
  for (int64_t j = 0; j < count; ++j) {
    float* row = dk + j * Dp;
    if (plan_.rotations.trains()) {
      add_key_turns(plan_, sums, b, kv_head, first + j, row, keys_.get() + worker * plan_.D,
                    *gradients.terms);
    }
    plan_.rotations.undo(false, b, kv_head, first + j, row);
    add_column_factors(plan_, sums, pair, first + j, row, *gradients.terms);
    if (gradients.key.given()) store_row(gradients.key, b, kv_head, first + j, plan_.D, row);
  }
}

}  // namespace relpos
