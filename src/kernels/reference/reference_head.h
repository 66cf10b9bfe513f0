// One row of attention in double: the terms loaded, keys rotated, scores, weights. For reference.cc.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/parallel.h"
#include "base/zeros.h"
#include "kernels/problem.h"
#include "kernels/reference/sums.h"
#include "values/turns.h"

namespace relpos::reference {

inline constexpr double kHidden = -HUGE_VAL;

inline void load_row(const TensorView& view, int64_t b, int64_t h, int64_t i, int64_t n,
                     double* row) {
  in_pieces(n, [&](int64_t from, int64_t to) {
    for (int64_t d = from; d < to; ++d) row[d] = view.at({b, h, i, d});
  });
}

inline void store_row(const TensorView& view, int64_t b, int64_t h, int64_t i, int64_t n,
                      const double* row) {
  in_pieces(n, [&](int64_t from, int64_t to) {
    for (int64_t d = from; d < to; ++d) view.store(view.offset({b, h, i, d}), row[d]);
  });
}

// Everything about the terms that all tasks share.
class Model {
 public:
  explicit Model(const Problem& problem) : p(problem) {
    for (const auto& t : p.terms.biases) {
      bias_tables.emplace_back(t.table);
      bias_slopes.emplace_back(t.slopes);
    }
    for (const auto& t : p.terms.row_tables) {
      row_tables.emplace_back(t.table);
      row_added.emplace_back(t.added);
    }
    for (const auto& t : p.terms.column_tables) column_tables.emplace_back(t.table);
    for (const auto& t : p.terms.pair_biases) pair_biases.emplace_back(t.table);
    for (const auto& t : p.terms.pair_rows) pair_rows.emplace_back(t.table);
    for (const auto& t : p.terms.value_tables) value_tables.emplace_back(t.table);
    for (const auto& t : p.terms.query_added) query_added.emplace_back(t);
  }

  // x <- R x of query or key i, or its transpose; hk is the key head. The transpose turns gradients: zeros
  // stay zeros, whatever the token turns by, NaN included.
  void rotate(double* x, bool query, int64_t b, int64_t hk, int64_t i, bool transpose) const {
    if (transpose && std::all_of(x, x + p.head_dim, [](double d) { return d == 0.0; })) return;
    for (const Rotation& r : p.terms.rotations) {
      for (int64_t n = 0; n < r.dims / 2; ++n) {
        const auto [at, partner] = dims_of_pair(r, n);
        const auto [c, sine] = turn_of(p.positions, r, n, query, b, hk, i);
        const double s = transpose ? -sine : sine;
        const double first = x[at], second = x[partner];
        x[at] = first * c - second * s;
        x[partner] = second * c + first * s;
      }
    }
  }

  bool decays() const {
    return std::any_of(p.terms.rotations.begin(), p.terms.rotations.end(),
                       [](const Rotation& r) { return r.decays(); });
  }

  // What a decaying rotation multiplies each dim's product by at this distance.
  void decay(int64_t delta, double* factors) const {
    std::fill_n(factors, p.head_dim, 1.0);
    for (const Rotation& r : p.terms.rotations) {
      if (!r.decays()) continue;
      const std::vector<double>& log_decay = r.by<Rotation::ByPosition>()->log_decay;
      for (int64_t n = 0; n < r.dims / 2; ++n) {
        const auto [at, partner] = dims_of_pair(r, n);
        factors[at] = factors[partner] = std::exp(static_cast<double>(delta) * log_decay[n]);
      }
    }
  }

  const Problem& p;
  std::vector<Loaded> bias_tables, bias_slopes, row_tables, row_added, column_tables, pair_biases,
      pair_rows, value_tables, query_added;
};

// The keys and values of one (b, kv head), and one query row at a time.
class Head {
 public:
  // Once `stopper` stops, loops over keys end early and what they leave means nothing.
  Head(const Model& model, int64_t batch, int64_t kv_head, Stopper& stopper, int worker)
      : m(model),
        p(model.p),
        b(batch),
        hk(kv_head),
        D(p.head_dim),
        Dv(p.value_dim),
        stopper_(stopper),
        worker_(worker) {
    k = zeros(p.keys * D);
    if (!p.terms.column_tables.empty()) k_plain = zeros(p.keys * D);
    for (int64_t j = 0; j < p.keys && !stopped(j); ++j) {
      load_row(p.key, b, hk, j, D, &k[j * D]);
      if (!k_plain.empty()) std::copy_n(&k[j * D], D, &k_plain[j * D]);
      m.rotate(&k[j * D], false, b, hk, j, false);
    }
    if (p.value.given()) {
      v = zeros(p.keys * Dv);
      for (int64_t j = 0; j < p.keys && !stopped(j); ++j)
        load_row(p.value, b, hk, j, Dv, &v[j * Dv]);
    }
    for (auto* row : {&q, &q_plain, &decay}) row->resize(D);
    score.resize(p.keys);
    weight.resize(score.size());
    dscore.resize(score.size());
    if (p.softcap != 0.0) cap_slope.resize(score.size());
  }

  void select(int64_t head, int64_t query) {
    h = head;
    i = query;
    load_row(p.query, b, h, i, D, q_plain.data());
    q = unturned();
    m.rotate(q.data(), true, b, hk, i, false);
  }

  // The selected query and what is added to it.
  std::vector<double> unturned() const {
    std::vector<double> x = q_plain;
    for (const Loaded& added : m.query_added) add_scaled(x.data(), 1.0, added.row(0, h), D);
    return x;
  }

  // Asks at the first key of a tile.
  bool stopped(int64_t j) const { return j % kTile == 0 && stopper_.stopped(worker_); }

  int64_t delta(int64_t j) const { return p.positions.key(b, j) - p.positions.query(b, i); }
  // By what a term is read.
  template <typename Term>
  int64_t delta(const Term& term, int64_t j) const {
    if (term.coordinates == nullptr) return delta(j);
    return term.coordinates->key(term.axis, b, j) - term.coordinates->query(term.axis, b, i);
  }

  template <typename F>
  void for_visible(F&& f) const {
    for (int64_t tile = 0; tile < p.tiles() && !stopped(tile * kTile); ++tile) {
      const uint64_t bits = p.visible.bits(b, h, i, tile);
      for (int64_t c = 0; c < kTile; ++c) {
        if ((bits >> c) & 1U) f(tile * kTile + c);
      }
    }
  }

  // The factor of this term, or the unrotated query.
  std::vector<double> factor_or_query(const TermData& factor, int64_t r) const {
    std::vector<double> a(r);
    if (factor.view.given()) {
      load_row(factor.view, b, h, i, r, a.data());
      for (double& x : a) x *= factor.multiplier;
    } else {
      std::copy_n(q_plain.data(), r, a.data());
    }
    return a;
  }

  // a_i of a row table: that plus the added vector.
  std::vector<double> row_factor(size_t n) const {
    const RowTable& term = p.terms.row_tables[n];
    const int64_t r = m.row_tables[n].columns;
    std::vector<double> a = factor_or_query(term.factor, r);
    if (term.added.view.given()) add_scaled(a.data(), 1.0, m.row_added[n].row(0, h), r);
    return a;
  }

  // a_i of rows by classes of pairs.
  std::vector<double> pair_factor(size_t n) const {
    return factor_or_query(p.terms.pair_rows[n].factor, m.pair_rows[n].columns);
  }

  // c_j of a column table.
  std::vector<double> column_factor(size_t n, int64_t j) const {
    const ColumnTable& term = p.terms.column_tables[n];
    const int64_t r = m.column_tables[n].columns;
    std::vector<double> c(r);
    if (term.factor.view.given()) {
      load_row(term.factor.view, b, hk, j, r, c.data());
      for (double& x : c) x *= term.factor.multiplier;
    } else {
      std::copy_n(&k_plain[j * D], r, c.data());
    }
    return c;
  }

  // The row of a pair bias that the selected head reads.
  int64_t pair_head(size_t n) const { return m.pair_biases[n].rows == 1 ? 0 : h; }

  static int64_t key_bias_offset(const TensorView& view, int64_t b, int64_t h, int64_t j) {
    return view.rank == 3 ? view.offset({b, h, j}) : view.offset({h, j});
  }

  // score[j] of the selected row; hidden pairs hold -inf.
  void score_row() {
    std::fill(score.begin(), score.end(), kHidden);
    std::vector<std::vector<double>> a;
    for (size_t n = 0; n < p.terms.row_tables.size(); ++n) a.push_back(row_factor(n));
    std::vector<std::vector<double>> pair_a;
    for (size_t n = 0; n < p.terms.pair_rows.size(); ++n) pair_a.push_back(pair_factor(n));
    const bool decays = m.decays();
    for_visible([&](int64_t j) {
      const int64_t d = delta(j);
      const double* key = &k[j * D];
      double s = 0.0;
      if (decays) {
        m.decay(d, decay.data());
        for (int64_t x = 0; x < D; ++x) decay[x] *= q[x];
        s = dot(decay.data(), key, D);
      } else {
        s = dot(q.data(), key, D);
      }
      s *= p.scale;
      for (size_t n = 0; n < a.size(); ++n) {
        const int64_t row = p.terms.row_tables[n].map(delta(p.terms.row_tables[n], j));
        if (row == ClassMap::kNone) continue;
        s += p.terms.row_tables[n].scale.value_or(p.scale) *
             dot(a[n].data(), m.row_tables[n].row(h, row), m.row_tables[n].columns);
      }
      for (size_t n = 0; n < p.terms.column_tables.size(); ++n) {
        const int64_t row = p.terms.column_tables[n].map(d);
        if (row == ClassMap::kNone) continue;
        s += p.terms.column_tables[n].scale.value_or(p.scale) * dot(column_factor(n, j).data(),
                                                                    m.column_tables[n].row(h, row),
                                                                    m.column_tables[n].columns);
      }
      for (size_t n = 0; n < pair_a.size(); ++n) {
        const PairRows& term = p.terms.pair_rows[n];
        s += term.scale.value_or(p.scale) * dot(pair_a[n].data(),
                                                m.pair_rows[n].row(h, term.classes.of(b, i, j)),
                                                m.pair_rows[n].columns);
      }
      for (size_t n = 0; n < p.terms.pair_biases.size(); ++n) {
        s += m.pair_biases[n].row(0, pair_head(n))[p.terms.pair_biases[n].classes.of(b, i, j)];
      }
      for (size_t n = 0; n < p.terms.biases.size(); ++n) {
        const DistanceBias& term = p.terms.biases[n];
        if (term.map) {
          const int64_t row = (*term.map)(delta(term, j));
          if (row != ClassMap::kNone) s += m.bias_tables[n].row(0, h)[row];
        }
        if (term.slopes.view.given()) {
          s += m.bias_slopes[n].row(0, d < 0 ? 0 : 1)[h] * static_cast<double>(d);
        }
      }
      for (const KeyBias& term : p.terms.key_biases) {
        s += term.values.multiplier *
             term.values.view.load(key_bias_offset(term.values.view, b, h, j));
      }
      if (p.softcap != 0.0) {
        const double t = std::tanh(s / p.softcap);
        s = p.softcap * t;
        cap_slope[j] = 1.0 - t * t;
      }
      if (p.visible.floating_mask()) s += p.visible.mask.load(p.visible.mask_offset(b, h, i, j));
      score[j] = s;
    });
  }

  // Calls f(n, score) for every sink of the selected row.
  template <typename F>
  void for_each_sink(F&& f) const {
    p.for_each_sink(b, h, i, f);
  }

  // exp(score - lse), of an lse over these keys and others.
  void weigh_under(double lse) {
    std::fill(weight.begin(), weight.end(), 0.0);
    top = lse;
    sum = 1.0;
    if (lse == kHidden) return;
    for_visible([&](int64_t j) { weight[j] = std::exp(score[j] - lse); });
  }

  // score -> weight[j] before dropout; 0 where hidden or where the row sees nothing. Leaves the
  // highest score, of keys and sinks (kHidden: there is none), and the sum of exp(score - top).
  void weigh() {
    std::fill(weight.begin(), weight.end(), 0.0);
    top = kHidden;
    sum = 0.0;
    std::vector<double> total(1);
    split(total);
    const auto raise = [&](double s) { top = larger_or_nan(top, s); };
    for_visible([&](int64_t j) { raise(score[j]); });
    for_each_sink([&](size_t, double s) { raise(s); });
    if (top == kHidden) return;
    for_each_sink([&](size_t, double s) { accumulate(total, 0, std::exp(s - top)); });
    for_visible([&](int64_t j) {
      const double w = std::exp(score[j] - top);
      weight[j] = w;
      accumulate(total, 0, w);
    });
    settle(total);
    sum = total[0];
    for (double& w : weight) w /= sum;
  }

  // The factor of dropout: 0, or 1 / (1 - p).
  double kept(int64_t j) const {
    if (!p.dropout.active()) return 1.0;
    return p.dropout.keeps(b, h, i, j) ? p.dropout.keep_scale() : 0.0;
  }

  // v_j + t[m(delta)].
  void value_row(int64_t j, double* row) const {
    std::copy_n(&v[j * Dv], Dv, row);
    for (size_t n = 0; n < p.terms.value_tables.size(); ++n) {
      const int64_t at = p.terms.value_tables[n].map(delta(j));
      if (at != ClassMap::kNone) add_scaled(row, 1.0, m.value_tables[n].row(h, at), Dv);
    }
  }

  const Model& m;
  const Problem& p;
  const int64_t b, hk, D, Dv;
  int64_t h = 0, i = 0;
  double top = kHidden, sum = 0.0;
  std::vector<double> k, k_plain, v, q, q_plain, decay, score, weight, dscore;
  std::vector<double> cap_slope;  // derivatives of the softcap, where there is one

 private:
  Stopper& stopper_;
  int worker_;
};

}  // namespace relpos::reference
