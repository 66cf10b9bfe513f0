// The gradients of one row of attention in double, beside reference_head.h. For reference.cc.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/reference/reference_head.h"
#include "values/turns.h"

namespace relpos::reference {

// Gradients of one (b, kv head), fed with dscore rows.
class HeadGradient {
 public:
  HeadGradient(Head& head, const ProblemGradients& gradients, TermGradients& terms)
      : x(head),
        m(head.m),
        p(head.p),
        out(gradients),
        t(terms),
        dk(std::ssize(head.k)),
        dk_plain(std::ssize(head.k_plain)),
        dv(std::ssize(head.v)),
        dq(head.D) {}

  // Everything that x.dscore of the selected row contributes; each line differentiates its twin in
  // score_row.
  void add_row() {
    const int64_t D = x.D;
    int64_t keys = 0;
    dq = Chained(D);
    a.clear();
    da.clear();
    for (size_t n = 0; n < p.terms.row_tables.size(); ++n) {
      a.push_back(x.row_factor(n));
      da.emplace_back(std::ssize(a.back()));
    }
    pair_a.clear();
    pair_da.clear();
    for (size_t n = 0; n < p.terms.pair_rows.size(); ++n) {
      pair_a.push_back(x.pair_factor(n));
      pair_da.emplace_back(std::ssize(pair_a.back()));
    }
    x.for_visible([&](int64_t j) {
      const double dmasked = x.dscore[j];
      if (out.mask != nullptr) {
        accumulate(*out.mask, out.mask_index.offset({x.b, x.h, x.i, j}), dmasked);
      }
      const double ds = x.cap_slope.empty() ? dmasked : dmasked * x.cap_slope[j];
      const int64_t d = x.delta(j);
      add_content(j, d, p.scale * ds);
      for (size_t n = 0; n < a.size(); ++n) add_row_table(n, j, ds);
      for (size_t n = 0; n < p.terms.column_tables.size(); ++n) add_column(n, j, d, ds);
      for (size_t n = 0; n < pair_a.size(); ++n) add_pair_rows(n, j, ds);
      for (size_t n = 0; n < p.terms.pair_biases.size(); ++n) add_pair_bias(n, j, ds);
      for (size_t n = 0; n < p.terms.biases.size(); ++n) add_bias(n, j, ds);
      for (size_t n = 0; n < p.terms.key_biases.size(); ++n) add_key_bias(n, j, ds);
      if (++keys % kTile == 0) join_row();
    });
    join_row();
    add_turns(true, x.i, x.unturned().data(), dq.sum.data());
    m.rotate(dq.sum.data(), true, x.b, x.hk, x.i, true);
    for (size_t n = 0; n < t.query_added.size(); ++n) {
      if (t.query_added[n].empty()) continue;
      accumulate(t.query_added[n], x.h * D, p.terms.query_added[n].multiplier, dq.sum.data(), D);
    }
    for (size_t n = 0; n < a.size(); ++n) finish_row_table(n);
    for (size_t n = 0; n < pair_a.size(); ++n) {
      finish_factor(p.terms.pair_rows[n].factor, t.pair_rows[n].factor, pair_da[n].sum);
    }
    if (out.query.given()) store_row(out.query, x.b, x.h, x.i, D, dq.sum.data());
    parts_ += std::max<int64_t>(1, std::ssize(p.terms.column_tables));
    if (parts_ >= kTile) join_keys();
  }

  // Rows of value gradients under the selected row's weights after dropout.
  void add_values(const std::vector<double>& dout) {
    const int64_t Dv = x.Dv;
    x.for_visible([&](int64_t j) {
      const double weight = x.weight[j] * x.kept(j);
      add_scaled(&dv.recent[j * Dv], weight, dout.data(), Dv);
      for (size_t n = 0; n < p.terms.value_tables.size(); ++n) {
        const int64_t row = p.terms.value_tables[n].map(x.delta(j));
        if (row == ClassMap::kNone || t.value_tables[n].table.empty()) continue;
        accumulate(t.value_tables[n].table, m.value_tables[n].at(x.h, row),
                   weight * p.terms.value_tables[n].table.multiplier, dout.data(), Dv);
      }
    });
  }

  // `delta` is <dout, out> - dlse.
  void add_sinks(double delta) {
    x.for_each_sink([&](size_t n, double score) {
      std::vector<double>& sums = t.sinks[n];
      if (sums.empty() || x.top == kHidden) return;
      const TermData& sink = p.terms.sinks[n];
      const int64_t at = sink.view.rank == 3 ? (x.b * p.heads + x.h) * p.queries + x.i : x.h;
      accumulate(sums, at, -std::exp(score - x.top) / x.sum * delta * sink.multiplier);
    });
  }

  void store() {
    join_keys();
    for (int64_t j = 0; j < p.keys && !x.stopped(j); ++j) {
      double* row = &dk.sum[j * x.D];
      std::vector<double> key(x.D);
      load_row(p.key, x.b, x.hk, j, x.D, key.data());
      add_turns(false, j, key.data(), row);
      m.rotate(row, false, x.b, x.hk, j, true);
      if (!dk_plain.sum.empty()) add_scaled(row, 1.0, &dk_plain.sum[j * x.D], x.D);
      if (out.key.given()) store_row(out.key, x.b, x.hk, j, x.D, row);
      if (out.value.given()) store_row(out.value, x.b, x.hk, j, x.Dv, &dv.sum[j * x.Dv]);
    }
  }

 private:
  void join_row() {
    dq.join();
    for (Chained& each : da) each.join();
    for (Chained& each : pair_da) each.join();
  }
  void join_keys() {
    for (Chained* each : {&dk, &dk_plain, &dv}) each->join();
    parts_ = 0;
  }

  void add_content(int64_t j, int64_t d, double ds) {
    const double* key = &x.k[j * x.D];
    double *dquery = dq.recent.data(), *dkey = &dk.recent[j * x.D];
    if (!m.decays()) {
      add_scaled(dquery, ds, key, x.D);
      add_scaled(dkey, ds, x.q.data(), x.D);
      return;
    }
    m.decay(d, x.decay.data());
    for (int64_t c = 0; c < x.D; ++c) {
      dquery[c] += ds * key[c] * x.decay[c];
      dkey[c] += ds * x.q[c] * x.decay[c];
    }
  }

  // What query or key i gives to what its head turns by: x before R, dy the gradient of R x. Where dy is 0
  // it gives nothing, whatever x is.
  void add_turns(bool query, int64_t i, const double* from, const double* dy) {
    for (size_t n = 0; n < t.rotations.size(); ++n) {
      const Rotation& r = p.terms.rotations[n];
      for (int64_t pair = 0; pair < r.dims / 2; ++pair) {
        const auto [at, partner] = dims_of_pair(r, pair);
        if (dy[at] == 0.0 && dy[partner] == 0.0) continue;
        const double of_cos = dy[at] * from[at] + dy[partner] * from[partner];
        const double of_sin = dy[partner] * from[at] - dy[at] * from[partner];
        add_turn(n, query, i, pair, of_cos, of_sin);
      }
    }
  }

  void add_turn(size_t n, bool query, int64_t i, int64_t pair, double of_cos, double of_sin) {
    const Rotation& r = p.terms.rotations[n];
    TermGradients::Turns& to = t.rotations[n];
    const int64_t length = query ? p.queries : p.keys;
    const int64_t token = ((x.b * p.kv_heads + x.hk) * length + i) * (r.dims / 2) + pair;
    const auto add = [&](const TermData& data, std::vector<double>& sums, double gradient) {
      if (!sums.empty()) accumulate(sums, token, gradient * r.magnitude * data.multiplier);
    };
    if (const auto* given = r.by<Rotation::Tables>()) {
      add(query ? given->q_cos : given->k_cos, query ? to.q_cos : to.k_cos, of_cos);
      add(query ? given->q_sin : given->k_sin, query ? to.q_sin : to.k_sin, of_sin);
    }
    if (to.head_frequency.empty()) return;
    const auto& heads = *r.by<Rotation::ByHead>();
    const TensorView& view = heads.frequency.view;
    const auto [c, s] = turn_of(p.positions, r, pair, query, x.b, x.hk, i);
    for (int64_t axis = 0; axis < view.shape[0]; ++axis) {
      const auto by = static_cast<double>(heads.coordinates->of(query, axis, x.b, i));
      const int64_t head = view.shape[1] == 1 ? 0 : x.hk;
      accumulate(to.head_frequency, (axis * view.shape[1] + head) * view.shape[2] + pair,
                 by * (of_sin * c - of_cos * s) * heads.frequency.multiplier);
    }
  }

  void add_row_table(size_t n, int64_t j, double ds) {
    const RowTable& term = p.terms.row_tables[n];
    const int64_t row = term.map(x.delta(term, j)), r = m.row_tables[n].columns;
    if (row == ClassMap::kNone) return;
    const double s = term.scale.value_or(p.scale) * ds;
    add_scaled(da[n].recent.data(), s, m.row_tables[n].row(x.h, row), r);
    if (t.row_tables[n].table.empty()) return;
    accumulate(t.row_tables[n].table, m.row_tables[n].at(x.h, row), s * term.table.multiplier,
               a[n].data(), r);
  }

  void finish_row_table(size_t n) {
    const RowTable& term = p.terms.row_tables[n];
    auto& [table, factor, added] = t.row_tables[n];
    const int64_t r = m.row_tables[n].columns;
    if (!added.empty()) {
      accumulate(added, x.h * r, term.added.multiplier, da[n].sum.data(), r);
    }
    finish_factor(term.factor, factor, da[n].sum);
  }

  // What the selected row's factor gets, or its query.
  void finish_factor(const TermData& factor, std::vector<double>& sums,
                     const std::vector<double>& own) {
    const int64_t r = std::ssize(own);
    if (!factor.view.given()) {
      add_scaled(dq.sum.data(), 1.0, own.data(), r);
    } else if (!sums.empty()) {
      const int64_t at = ((x.b * p.heads + x.h) * p.queries + x.i) * r;
      accumulate(sums, at, factor.multiplier, own.data(), r);
    }
  }

  void add_pair_rows(size_t n, int64_t j, double ds) {
    const PairRows& term = p.terms.pair_rows[n];
    const int64_t row = term.classes.of(x.b, x.i, j), r = m.pair_rows[n].columns;
    const double s = term.scale.value_or(p.scale) * ds;
    add_scaled(pair_da[n].recent.data(), s, m.pair_rows[n].row(x.h, row), r);
    if (t.pair_rows[n].table.empty()) return;
    accumulate(t.pair_rows[n].table, m.pair_rows[n].at(x.h, row), s * term.table.multiplier,
               pair_a[n].data(), r);
  }

  void add_pair_bias(size_t n, int64_t j, double ds) {
    if (t.pair_biases[n].table.empty()) return;
    const PairBias& term = p.terms.pair_biases[n];
    accumulate(t.pair_biases[n].table,
               m.pair_biases[n].at(0, x.pair_head(n)) + term.classes.of(x.b, x.i, j),
               ds * term.table.multiplier);
  }

  void add_key_bias(size_t n, int64_t j, double ds) {
    if (t.key_biases[n].table.empty()) return;
    const TermData& values = p.terms.key_biases[n].values;
    const int64_t batch = values.view.rank == 3 ? x.b : 0;
    accumulate(t.key_biases[n].table, (batch * p.heads + x.h) * p.keys + j, ds * values.multiplier);
  }

  void add_column(size_t n, int64_t j, int64_t d, double ds) {
    const ColumnTable& term = p.terms.column_tables[n];
    const int64_t row = term.map(d);
    if (row == ClassMap::kNone) return;
    const double s = term.scale.value_or(p.scale) * ds;
    const int64_t r = m.column_tables[n].columns;
    if (!t.column_tables[n].table.empty()) {
      accumulate(t.column_tables[n].table, m.column_tables[n].at(x.h, row),
                 s * term.table.multiplier, x.column_factor(n, j).data(), r);
    }
    const double* table = m.column_tables[n].row(x.h, row);
    if (!term.factor.view.given()) {
      add_scaled(&dk_plain.recent[j * x.D], s, table, r);
    } else if (!t.column_tables[n].factor.empty()) {
      accumulate(t.column_tables[n].factor, ((x.b * p.kv_heads + x.hk) * p.keys + j) * r,
                 s * term.factor.multiplier, table, r);
    }
  }

  void add_bias(size_t n, int64_t j, double ds) {
    const DistanceBias& term = p.terms.biases[n];
    const int64_t d = x.delta(term, j);
    if (!t.biases[n].table.empty()) {
      const int64_t row = (*term.map)(d);
      if (row != ClassMap::kNone) {
        accumulate(t.biases[n].table, m.bias_tables[n].at(0, x.h) + row,
                   ds * term.table.multiplier);
      }
    }
    if (!t.biases[n].slopes.empty()) {
      accumulate(t.biases[n].slopes, (d < 0 ? 0 : p.heads) + x.h,
                 ds * static_cast<double>(d) * term.slopes.multiplier);
    }
  }

  Head& x;
  const Model& m;
  const Problem& p;
  const ProblemGradients& out;
  TermGradients& t;
  Chained dk, dk_plain, dv, dq;
  int64_t parts_ = 0;                          // in the chains of keys
  std::vector<std::vector<double>> a, pair_a;  // of each row table, and of rows by pairs
  std::vector<Chained> da, pair_da;
};

}  // namespace relpos::reference
