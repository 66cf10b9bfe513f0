// The bound of docs/accuracy.md on the difference of the fused path and the reference, for tests of the
// kernels. The addends' sizes are the scores of the same problem with every number positive.
// tests/support/promise.py has the same bound from dense formulas and shares nothing with this code on
// purpose: it judges the library from outside, also the reference that this code calls.
#pragma once

#include <algorithm>
#include <cmath>
#include <list>
#include <vector>

#include "kernels/reference/reference.h"
#include "testing/random_terms.h"
#include "values/turns.h"

namespace relpos::error_bound {

inline constexpr double kRoundings = 64, kChain = 64;
inline constexpr double kEps = 0x1p-24, kFlushed = 0x1p-100, kLeast = 0x1p-126;

// (C + n / chain) eps.
inline double roundings(const Problem& p) {
  const auto longest = static_cast<double>(std::max(p.keys, p.queries * p.group()));
  return (kRoundings + longest / kChain) * kEps;
}

// The problem with the sizes of its numbers. Rotations become the longest that a pair can be.
class Sizes {
 public:
  Problem p;

  explicit Sizes(const random_terms::Case& c) : p(c.p) {
    p.softcap = 0.0;  // its slope is at most 1
    p.query = turned(c.q.view());
    p.key = turned(c.k.view());
    for (TermData& u : p.terms.query_added) u.view = turned(u.view);
    std::vector<Rotation> decaying;
    for (Rotation& r : p.terms.rotations) {
      if (!r.decays()) continue;
      std::vector<double>& frequency = r.by_position().frequency;
      std::fill(frequency.begin(), frequency.end(), 0.0);
      r.magnitude = 1.0;
      decaying.push_back(r);
    }
    p.terms.rotations = decaying;
    for (DistanceBias& t : p.terms.biases) {
      size(t.table);
      size(t.slopes);
      for (int64_t h = 0; t.slopes.view.given() && h < p.heads; ++h) {  // past distances are < 0
        const int64_t at = t.slopes.view.offset({0, h});
        t.slopes.view.store(at, -t.slopes.view.load(at));
      }
    }
    for (RowTable& t : p.terms.row_tables) {
      for (TermData* data : {&t.table, &t.factor, &t.added}) size(*data);
    }
    for (ColumnTable& t : p.terms.column_tables) {
      for (TermData* data : {&t.table, &t.factor}) size(*data);
    }
    for (KeyBias& t : p.terms.key_biases) size(t.values);
    for (PairBias& t : p.terms.pair_biases) size(t.table);
    for (PairRows& t : p.terms.pair_rows) {
      for (TermData* data : {&t.table, &t.factor}) size(*data);
    }
    if (!p.visible.mask.given()) return;
    const TensorView mask = positive(c.mask.view());
    for (int64_t n = 0; n < mask.numel(); ++n) {
      if (c.mask.view().load(n) == -HUGE_VAL) mask.store(n, -HUGE_VAL);
    }
    p.visible.mask.data = mask.data;
    p.visible.mask.dtype = mask.dtype;
  }

 private:
  // |x| in double, never 0.
  TensorView positive(const TensorView& x) {
    owned_.emplace_back(DType::kFloat64, x.dims());
    const TensorView& to = owned_.back().view();
    for (int64_t n = 0; n < x.numel(); ++n) to.store(n, std::max(std::fabs(x.load(n)), 1e-30));
    return to;
  }

  void size(TermData& data) {
    if (data.view.given()) data.view = positive(data.view);
  }

  TensorView turned(const TensorView& x) {
    const TensorView to = positive(x);
    const int64_t D = p.head_dim;
    for (const Rotation& r : p.terms.rotations) {
      const double longest = std::sqrt(2.0) * std::max(1.0, r.magnitude * r.magnitude);
      for (int64_t row = 0; row < x.numel() / D; ++row) {
        for (int64_t n = 0; n < r.dims / 2; ++n) {
          const auto [first, second] = dims_of_pair(r, n);
          const double length =
              longest * std::hypot(to.load(row * D + first), to.load(row * D + second));
          to.store(row * D + first, length);
          to.store(row * D + second, length);
        }
      }
    }
    return to;
  }

  std::list<Tensor> owned_;
};

// One row's P, and P R of docs/accuracy.md, with what dropout makes of them.
struct Row {
  std::vector<double> weight, heavy, kept;
  std::vector<double> sink_weight, sink_heavy;  // the same of the sinks
  double lse_size = 1.0;

  Row(const Problem& p, const double* score, const double* size, int64_t b, int64_t h, int64_t i,
      double c)
      : weight(p.keys), heavy(weight), kept(weight.size(), 1.0) {
    std::vector<double> scores(score, score + p.keys), sizes(size, size + p.keys);
    p.for_each_sink(b, h, i, [&](size_t, double sink) {
      scores.push_back(sink);
      sizes.push_back(std::fabs(sink));
    });
    weigh(scores, sizes, c);
    for (size_t j = 0; j < kept.size(); ++j) {
      if (score[j] == -HUGE_VAL || !p.dropout.active()) continue;
      const auto key = static_cast<int64_t>(j);
      kept[j] = p.dropout.keeps(b, h, i, key) ? p.dropout.keep_scale() : 0.0;
    }
  }

 private:
  // `score` and `size` hold the keys first and then the sinks.
  void weigh(const std::vector<double>& score, const std::vector<double>& size, double c) {
    const size_t keys = weight.size();
    sink_weight.resize(score.size() - keys);
    sink_heavy.resize(sink_weight.size());
    if (score.empty()) return;
    const double top = *std::max_element(score.begin(), score.end());
    if (top == -HUGE_VAL) return;
    std::vector<double> own(score.size()), error(score.size());
    double total = 0.0, mean = 0.0;
    for (size_t j = 0; j < own.size(); ++j) total += own[j] = std::exp(score[j] - top);
    for (size_t j = 0; j < own.size(); ++j) {
      if (score[j] == -HUGE_VAL) continue;
      own[j] /= total;
      error[j] = std::expm1(std::min(60.0, c * (size[j] + top - score[j]))) / c;
      mean += own[j] * error[j];
      lse_size += own[j] * (size[j] + error[j]);
    }
    for (size_t j = 0; j < own.size(); ++j) {
      if (score[j] == -HUGE_VAL) continue;
      const double others = std::max(0.0, mean - own[j] * error[j]);
      const double spread =
          1.0 + std::exp(std::min(60.0, c * mean)) * (others + (1.0 - own[j]) * error[j]);
      (j < keys ? weight[j] : sink_weight[j - keys]) = own[j];
      (j < keys ? heavy[j] : sink_heavy[j - keys]) = own[j] * spread + kFlushed;
    }
  }
};

// |v_j| + |t_ij|.
inline std::vector<double> value_sizes(const Problem& p, int64_t b, int64_t h, int64_t i,
                                       int64_t j) {
  std::vector<double> sum(p.value_dim);
  const int64_t delta = p.positions.key(b, j) - p.positions.query(b, i);
  for (int64_t d = 0; d < p.value_dim; ++d) {
    sum[d] = std::fabs(p.value.at({b, h / p.group(), j, d}));
    for (const ValueTable& t : p.terms.value_tables) {
      const int64_t m = t.map(delta);
      if (m == ClassMap::kNone) continue;
      const TensorView& table = t.table.view;
      sum[d] += std::fabs(t.table.multiplier *
                          (table.rank == 3 ? table.at({h, m, d}) : table.at({m, d})));
    }
  }
  return sum;
}

// Into the gradients of value tables: what row (h, i) and key j add to element d.
inline void add_to_value_tables(const Problem& p, TermGradients& to, int64_t b, int64_t h,
                                int64_t i, int64_t j, int64_t d, double size) {
  for (size_t n = 0; n < p.terms.value_tables.size(); ++n) {
    const ValueTable& t = p.terms.value_tables[n];
    const int64_t m = t.map(p.positions.key(b, j) - p.positions.query(b, i));
    if (m == ClassMap::kNone) continue;
    const TensorView& table = t.table.view;
    const int64_t at =
        table.rank == 3 ? (h * table.shape[1] + m) * table.shape[2] + d : m * table.shape[1] + d;
    to.value_tables[n].table[at] += size * std::fabs(t.table.multiplier);
  }
}

// Into the gradients of what pairs turn by: what queries and keys give through their products alone.
template <typename Results>
void add_turns(const random_terms::Case& c, const Sizes& sizes, const Tensor& dscore,
               Results& bounds) {
  Problem content = sizes.p;
  content.terms.row_tables.clear();
  content.terms.column_tables.clear();
  content.terms.pair_rows.clear();
  Results own(c, DType::kFloat64);
  TermGradients terms = TermGradients::zeros(content.terms);
  ProblemGradients to = own.gradients(c);
  to.value = {};
  to.terms = &terms;
  reference_scores_backward(content, dscore.view(), to);
  // Adds, for a pair of row (b, h, i), the most that its angle, cosine or sine gets.
  const auto add = [&](size_t t, bool query, const TensorView& x, const TensorView& dx) {
    const Rotation& r = c.p.terms.rotations[t];
    const int64_t heads = x.shape[1], length = x.shape[2], dims = x.shape[3], pairs = r.dims / 2;
    for (int64_t n = 0; n < x.numel() / dims * pairs; ++n) {
      const int64_t pair = n % pairs, row = n / pairs;
      const int64_t i = row % length, h = row / length % heads, b = row / length / heads;
      const int64_t kv_head = h / (heads / c.p.kv_heads);
      const auto [first, second] = dims_of_pair(r, pair);
      double most = x.load(row * dims + first);
      for (const TermData& u : query ? content.terms.query_added : std::vector<TermData>{}) {
        most += u.view.at({h, first}) * u.multiplier;
      }
      most *= dx.load(row * dims + first) + dx.load(row * dims + second);
      TermGradients::Turns& turns = bounds.terms.rotations[t];
      const int64_t token = ((b * c.p.kv_heads + kv_head) * length + i) * pairs + pair;
      for (auto* table :
           {query ? &turns.q_cos : &turns.k_cos, query ? &turns.q_sin : &turns.k_sin}) {
        if (!table->empty()) (*table)[token] += most * r.magnitude;
      }
      const auto* heads_own = r.by<Rotation::ByHead>();
      if (heads_own == nullptr) continue;
      const TensorView& numbers = heads_own->frequency.view;
      for (int64_t axis = 0; axis < numbers.shape[0]; ++axis) {
        const auto by = static_cast<double>(heads_own->coordinates->of(query, axis, b, i));
        const int64_t head = numbers.shape[1] == 1 ? 0 : kv_head;
        turns.head_frequency[numbers.offset({axis, head, pair})] +=
            std::fabs(by) * most * heads_own->frequency.multiplier;
      }
    }
  };
  for (size_t t = 0; t < c.p.terms.rotations.size(); ++t) {
    add(t, true, sizes.p.query, own.dq.view());
    add(t, false, sizes.p.key, own.dk.view());
  }
}

// Bounds of everything in `exact`, in `bounds`, which starts as zeros of the same shapes in double.
// `rounding` is that of weights, and of queries and keys that have turned, beside those of float32.
template <typename Results>
void fill(const random_terms::Case& c, const Results& exact, Results& bounds,
          double rounding = 0.0) {
  const Problem& p = c.p;
  const Sizes sizes(c);
  const double eps = roundings(p) + rounding;
  const std::vector<int64_t> pairs{p.batch, p.heads, p.queries, p.keys};
  const Tensor score(DType::kFloat64, pairs), size(DType::kFloat64, pairs),
      dscore(DType::kFloat64, pairs);
  reference_scores(p, score.view());
  reference_scores(sizes.p, size.view());
  for (int64_t row = 0; row < p.batch * p.heads * p.queries; ++row) {
    const int64_t i = row % p.queries, h = row / p.queries % p.heads,
                  b = row / (p.queries * p.heads);
    const double *scores = score.data<double>() + row * p.keys,
                 *row_sizes = size.data<double>() + row * p.keys;
    const Row at(p, scores, row_sizes, b, h, i, eps);
    bounds.lse.template data<double>()[row] = eps * at.lse_size;
    const auto dout = [&](int64_t d) { return std::fabs(c.dout.view().at({b, h, i, d})); };
    std::vector<double> out_size(p.value_dim, kLeast), met(at.weight.size());
    for (int64_t j = 0; j < p.keys; ++j) {
      const auto key = static_cast<size_t>(j);
      if (scores[j] == -HUGE_VAL) continue;
      const std::vector<double> value = value_sizes(p, b, h, i, j);
      for (int64_t d = 0; d < p.value_dim; ++d) {
        const double heavy = at.heavy[key] * at.kept[key];
        const double size_of_v = value[d];
        out_size[d] += heavy * size_of_v;
        met[key] += at.kept[key] * dout(d) * size_of_v;
        const int64_t to = c.v.view().offset({b, h / p.group(), j, d});
        bounds.dv.template data<double>()[to] += eps * heavy * dout(d);
        add_to_value_tables(p, bounds.terms, b, h, i, j, d, eps * heavy * dout(d));
      }
    }
    double addends = std::fabs(c.dlse.view().at({b, h, i})), from_out = 0.0;
    for (int64_t d = 0; d < p.value_dim; ++d) {
      const int64_t to = row * p.value_dim + d;
      bounds.out.template data<double>()[to] = eps * out_size[d];
      addends += dout(d) * std::fabs(exact.out.template data<double>()[to]);
      from_out += dout(d) * out_size[d];
    }
    for (size_t n = 0; n < p.terms.sinks.size(); ++n) {
      const TermData& sink = p.terms.sinks[n];
      const int64_t to = sink.view.rank == 3 ? row : h;
      bounds.terms.sinks[n][to] +=
          eps * sink.multiplier *
          (at.sink_heavy[n] * addends + at.sink_weight[n] * from_out + kLeast);
    }
    for (int64_t j = 0; j < p.keys; ++j) {
      const auto key = static_cast<size_t>(j);
      if (scores[j] == -HUGE_VAL) continue;
      dscore.data<double>()[row * p.keys + j] =
          eps * (at.heavy[key] * (met[key] + addends) + at.weight[key] * from_out + kLeast);
    }
  }
  ProblemGradients to = bounds.gradients(c);
  to.value = {};
  reference_scores_backward(sizes.p, dscore.view(), to);
  add_turns(c, sizes, dscore, bounds);
  for (auto& bias : bounds.terms.biases) {
    for (double& x : bias.slopes) x = std::fabs(x);  // past distances are < 0
  }
}

}  // namespace relpos::error_bound
