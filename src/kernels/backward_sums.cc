#include "kernels/backward_sums.h"

#include <algorithm>

namespace relpos {

Sums::Sums(const Plan& plan, const TermGradients& wants) {
  const int64_t keys = plan.tiles * kTile, group = plan.p.group();
  dk = Buffer<float>(keys * plan.Dp);
  dv = Buffer<float>(keys * plan.Dvp);
  for (const BiasPlan& own : plan.biases) {
    const TermGradients::Bias& gradient = wants.biases[own.term];
    const bool wanted = !(own.sloped ? gradient.slopes : gradient.table).empty();
    bias.emplace_back(
        static_cast<size_t>(wanted && own.cells.size() > 0 ? group * own.row_size() : 0));
    ramp.emplace_back(static_cast<size_t>(wanted && own.sloped ? 2 * group : 0));
  }
  const auto table_sums = [&](const TablePlan& table, bool wanted) {
    return Buffer<float>(
        wanted ? (table.heads == 1 ? 1 : group) * table.entries() * table.padded_rank : 0);
  };
  for (size_t n = 0; n < plan.row_tables.size(); ++n) {
    rows.push_back(table_sums(plan.row_tables[n], !wants.row_tables[n].table.empty()));
    added.emplace_back(static_cast<size_t>(
        wants.row_tables[n].added.empty() ? 0 : group * plan.row_tables[n].rank));
  }
  for (size_t n = 0; n < plan.value_tables.size(); ++n) {
    values.push_back(table_sums(plan.value_tables[n], !wants.value_tables[n].table.empty()));
  }
  for (size_t n = 0; n < plan.columns.size(); ++n) {
    columns.push_back(table_sums(plan.columns[n].table, !wants.column_tables[n].table.empty()));
    const bool own = plan.p.terms.column_tables[n].factor.view.given();
    const bool wanted = !own || !wants.column_tables[n].factor.empty();
    factors.emplace_back(wanted ? keys * plan.columns[n].table.padded_rank : 0);
  }
  for (const auto& g : wants.query_added) {
    if (!g.empty()) query_added.resize(static_cast<size_t>(group * plan.D));
  }
  bool key = false;
  for (const auto& g : wants.key_biases) key = key || !g.table.empty();
  if (key) key_bias = Buffer<float>(group * keys);
}

int64_t Sums::bytes() const {
  int64_t floats = dk.size() + dv.size() + key_bias.size(), doubles = 0;
  doubles += static_cast<int64_t>(query_added.size());
  for (const auto* list : {&rows, &values, &columns, &factors}) {
    for (const auto& b : *list) floats += b.size();
  }
  for (const auto* list : {&bias, &ramp, &added}) {
    for (const auto& s : *list) doubles += static_cast<int64_t>(s.size());
  }
  return 4 * floats + 8 * doubles;
}

void Sums::clear() {
  const auto zero = [](const Buffer<float>& b) { std::fill_n(b.get(), b.size(), 0.0f); };
  zero(dk);
  zero(dv);
  zero(key_bias);
  std::fill(query_added.begin(), query_added.end(), 0.0);
  for (auto* list : {&bias, &ramp, &added}) {
    for (auto& sums : *list) std::fill(sums.begin(), sums.end(), 0.0);
  }
  for (const auto* list : {&rows, &values, &columns, &factors}) {
    for (const auto& b : *list) zero(b);
  }
}

namespace {

// The table's sums of cells, or the slopes' sums of cells times distance and of ramps.
void reduce_bias(const Plan& plan, size_t n, int64_t kv_head, const Sums& sums, TermGradients& to) {
  const Problem& p = plan.p;
  const BiasPlan& bias = plan.biases[n];
  const Window& w = bias.window;
  const DistanceBias& term = p.terms.biases[bias.term];
  TermGradients::Bias& gradient = to.biases[bias.term];
  for (int64_t g = 0; g < p.group(); ++g) {
    const int64_t h = kv_head * p.group() + g;
    double past = 0.0, future = 0.0;
    for (int64_t c = -kPad; !sums.bias[n].empty() && c < w.width + kPad; ++c) {
      const double cell = sums.bias[n][static_cast<size_t>(g * bias.row_size() + kPad + c)];
      if (bias.sloped) {  // no visible pair lies in the pads
        const int64_t distance = w.lo + std::clamp<int64_t>(c, 0, w.width - 1);
        (distance < 0 ? past : future) += cell * static_cast<double>(distance);
      } else if (const int64_t row = w.class_of(c); row != ClassMap::kNone) {
        gradient.table[static_cast<size_t>(h * term.table.view.shape[1] + row)] +=
            cell * term.table.multiplier;
      }
    }
    if (sums.ramp[n].empty()) continue;
    past += sums.ramp[n][static_cast<size_t>(2 * g)];
    future += sums.ramp[n][static_cast<size_t>(2 * g + 1)];
    gradient.slopes[static_cast<size_t>(h)] += past * term.slopes.multiplier;
    gradient.slopes[static_cast<size_t>(p.heads + h)] += future * term.slopes.multiplier;
  }
}

// Columns [from, to) of one table's gradient.
void reduce_table(const Plan& plan, const TablePlan& table, const TermData& data,
                  const Buffer<float>& sums, int64_t kv_head, double scale, int64_t from,
                  int64_t to, Stopper& stopper, int worker, std::vector<double>& gradient) {
  if (sums.size() == 0) return;
  const int64_t heads = table.heads == 1 ? 1 : plan.p.group();
  const int64_t classes = data.view.shape[data.view.rank == 3 ? 1 : 0];
  for (int64_t g = 0; g < heads; ++g) {
    const int64_t h = table.heads == 1 ? 0 : kv_head * plan.p.group() + g;
    for (int64_t c = 0; c < table.entries(); ++c) {
      if (c % kTile == 0 && stopper.stopped(worker)) return;
      const int64_t row = table.classes[static_cast<size_t>(c)];
      if (row == ClassMap::kNone) continue;
      const float* cell = sums.get() + (g * table.entries() + c) * table.padded_rank;
      double* out = gradient.data() + (h * classes + row) * table.rank;
      for (int64_t d = from; d < to; ++d) {
        out[d] += static_cast<double>(cell[d]) * (scale * data.multiplier);
      }
    }
  }
}

}  // namespace

void reduce_terms(const Plan& plan, const std::vector<Sums>& sums, int64_t first_task,
                  int64_t count, int64_t chunks, int threads, Stopper& stopper, TermGradients& to) {
  const Problem& p = plan.p;
  CancelTicks tick;
  const auto kv_head = [&](int64_t n) { return (first_task + n) / chunks % p.kv_heads; };
  for (int64_t n = 0; n < count; ++n) {
    check_cancelled();
    const Sums& task = sums[static_cast<size_t>(n)];
    for (size_t t = 0; t < plan.biases.size(); ++t) reduce_bias(plan, t, kv_head(n), task, to);
    for (size_t t = 0; t < plan.row_tables.size(); ++t) {
      for (size_t d = 0; d < task.added[t].size(); ++d) {
        to.row_tables[t]
            .added[static_cast<size_t>(kv_head(n) * p.group() * plan.row_tables[t].rank) + d] +=
            task.added[t][d];
      }
    }
    for (size_t t = 0; t < p.terms.query_added.size(); ++t) {
      if (to.query_added[t].empty()) continue;
      double* gradient = &to.query_added[t][static_cast<size_t>(kv_head(n) * p.group() * plan.D)];
      for (size_t d = 0; d < task.query_added.size(); ++d) {
        gradient[d] += task.query_added[d] * p.terms.query_added[t].multiplier;
      }
    }
    for (size_t t = 0; t < p.terms.key_biases.size(); ++t) {
      std::vector<double>& gradient = to.key_biases[t].table;
      if (gradient.empty()) continue;
      const TermData& data = p.terms.key_biases[t].values;
      const int64_t b = data.view.rank == 3 ? (first_task + n) / chunks / p.kv_heads : 0;
      for (int64_t g = 0; g < p.group(); ++g) {
        const int64_t h = kv_head(n) * p.group() + g;
        for (int64_t j = 0; j < p.keys; ++j) {
          tick();
          gradient[static_cast<size_t>((b * p.heads + h) * p.keys + j)] +=
              static_cast<double>(task.key_bias[g * plan.tiles * kTile + j]) * data.multiplier;
        }
      }
    }
  }
  const auto tables = [&](size_t terms, auto&& plan_of, auto&& term, auto&& sum, auto&& gradient) {
    for (size_t t = 0; t < terms; ++t) {
      const TablePlan& table = plan_of(t);
      const int64_t rank = table.rank, strips = (rank + kLanes - 1) / kLanes;
      parallel_for(strips, threads, stopper, [&](int64_t strip, int worker) {
        for (int64_t n = 0; n < count; ++n) {
          const auto [data, scale] = term(t);
          reduce_table(plan, table, *data, sum(sums[static_cast<size_t>(n)], t), kv_head(n), scale,
                       strip * kLanes, std::min(rank, (strip + 1) * kLanes), stopper, worker,
                       gradient(t));
        }
      });
    }
  };
  // The factors that the sums of row and column tables hold are already times s log2(e).
  tables(
      plan.row_tables.size(), [&](size_t t) -> const TablePlan& { return plan.row_tables[t]; },
      [&](size_t t) { return std::pair{&p.terms.row_tables[t].table, kLn2}; },
      [](const Sums& s, size_t t) -> const Buffer<float>& { return s.rows[t]; },
      [&](size_t t) -> std::vector<double>& { return to.row_tables[t].table; });
  tables(
      plan.columns.size(), [&](size_t t) -> const TablePlan& { return plan.columns[t].table; },
      [&](size_t t) { return std::pair{&p.terms.column_tables[t].table, kLn2}; },
      [](const Sums& s, size_t t) -> const Buffer<float>& { return s.columns[t]; },
      [&](size_t t) -> std::vector<double>& { return to.column_tables[t].table; });
  tables(
      plan.value_tables.size(), [&](size_t t) -> const TablePlan& { return plan.value_tables[t]; },
      [&](size_t t) { return std::pair{&p.terms.value_tables[t].table, 1.0}; },
      [](const Sums& s, size_t t) -> const Buffer<float>& { return s.values[t]; },
      [&](size_t t) -> std::vector<double>& { return to.value_tables[t].table; });
}

namespace {

// Sums the chunks of column term n for key j: into dk where the key is the factor.
void add_factors(const Plan& plan, size_t n, const Sums* sums, int64_t chunks, int64_t pair,
                 int64_t j, float* dk, const ProblemGradients& gradients) {
  const TablePlan& table = plan.columns[n].table;
  if (sums->factors[n].size() == 0) return;
  const TermData& factor = plan.p.terms.column_tables[n].factor;
  for (int64_t d = 0; d < table.rank; ++d) {
    double sum = 0.0;
    for (int64_t c = 0; c < chunks; ++c) {
      sum += static_cast<double>(sums[c].factors[n][j * table.padded_rank + d]);
    }
    sum *= table.scale;
    if (factor.view.given()) {
      const int64_t at = (pair * plan.p.keys + j) * table.rank + d;
      gradients.terms->column_tables[n].factor[static_cast<size_t>(at)] = sum * factor.multiplier;
    } else {
      dk[d] += static_cast<float>(sum);
    }
  }
}

}  // namespace

void reduce_keys(const Plan& plan, std::vector<Sums>& sums, int64_t first_pair, int64_t pairs,
                 int64_t chunks, int threads, Stopper& stopper, const ProblemGradients& gradients) {
  const Problem& p = plan.p;
  parallel_for(pairs * plan.tiles, threads, stopper, [&](int64_t task, int) {
    const int64_t slot = task / plan.tiles, pair = first_pair + slot;
    const int64_t b = pair / p.kv_heads, kv_head = pair % p.kv_heads;
    const int64_t first = task % plan.tiles * kTile;
    for (int64_t j = first; j < std::min(p.keys, first + kTile); ++j) {
      float* dk = sums[static_cast<size_t>(slot * chunks)].dk.get() + j * plan.Dp;
      float* dv = sums[static_cast<size_t>(slot * chunks)].dv.get() + j * plan.Dvp;
      for (int64_t c = 1; c < chunks; ++c) {
        const Sums& chunk = sums[static_cast<size_t>(slot * chunks + c)];
        for (int64_t d = 0; d < plan.D; ++d) dk[d] += chunk.dk[j * plan.Dp + d];
        for (int64_t d = 0; d < plan.Dv; ++d) dv[d] += chunk.dv[j * plan.Dvp + d];
      }
      if (gradients.key.given()) {
        for (int64_t d = 0; d < plan.D; ++d) dk[d] *= static_cast<float>(kLn2);
        plan.unrotate_key(b, j, dk);
      }
      for (size_t n = 0; n < plan.columns.size(); ++n) {
        add_factors(plan, n, &sums[static_cast<size_t>(slot * chunks)], chunks, pair, j, dk,
                    gradients);
      }
      if (gradients.key.given()) {
        Plan::store_row(gradients.key, b, kv_head, j, plan.D, dk);
      }
      if (gradients.value.given()) Plan::store_row(gradients.value, b, kv_head, j, plan.Dv, dv);
    }
  });
}
}  // namespace relpos
