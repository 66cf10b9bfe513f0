// What random problems are drawn with, and problems that own their tensors. For random_terms.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <list>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "kernels/fused.h"

namespace relpos::random_terms {

using Rng = std::mt19937_64;

inline int64_t draw(Rng& rng, int64_t lo, int64_t hi) {
  return std::uniform_int_distribution<int64_t>(lo, hi)(rng);
}

inline int64_t one_of(Rng& rng, const std::vector<int64_t>& of) {
  return of[draw(rng, 0, static_cast<int64_t>(of.size()) - 1)];
}

inline bool chance(Rng& rng, double p) { return std::bernoulli_distribution(p)(rng); }

inline std::vector<double> normal(Rng& rng, int64_t n, double deviation = 1.0) {
  std::normal_distribution<double> d(0.0, deviation);
  std::vector<double> values(n);
  for (double& v : values) v = static_cast<double>(static_cast<float>(d(rng)));
  return values;
}

inline Tensor float_tensor(Rng& rng, std::vector<int64_t> shape) {
  Tensor tensor(DType::kFloat32, shape);
  const auto values = normal(rng, tensor.view().numel());
  std::copy(values.begin(), values.end(), tensor.data<float>());
  return tensor;
}

inline std::vector<float> floats(const Tensor& x) {
  return {x.data<float>(), x.data<float>() + x.view().numel()};
}

// A term with a map that reads a table, at the end of a list of them.
template <typename Term>
Term& add_term(std::vector<Term>& terms, const ClassMap& map, const TermData& table) {
  Term& term = terms.emplace_back();
  term.map = map;
  term.table = table;
  return term;
}

// Sizes, and positions from 0 on.
inline void set_sizes(Problem& p, int64_t batch, int64_t heads, int64_t kv_heads, int64_t queries,
                      int64_t keys) {
  p.batch = batch;
  p.heads = heads;
  p.kv_heads = kv_heads;
  p.queries = p.positions.queries = p.visible.queries = queries;
  p.keys = p.positions.keys = p.visible.keys = keys;
  p.positions.q = p.positions.k = {0};
}

// A problem without terms at positions from 0 on, with room for its results.
struct PlainCall {
  Rng rng;
  Problem p;
  Tensor q, k, v, dout, out, lse, dq, dk, dv;
  TermGradients terms;
  std::list<Tensor> owned;

  PlainCall(uint64_t seed, int64_t queries, int64_t keys, int64_t dim, int64_t batch = 1,
            int64_t heads = 1, int64_t kv_heads = 1)
      : rng(seed) {
    for (Tensor* t : {&q, &dout, &out, &dq}) *t = float_tensor(rng, {batch, heads, queries, dim});
    for (Tensor* t : {&k, &v, &dk, &dv}) *t = float_tensor(rng, {batch, kv_heads, keys, dim});
    lse = float_tensor(rng, {batch, heads, queries});
    set_sizes(p, batch, heads, kv_heads, queries, keys);
    p.head_dim = p.value_dim = dim;
    p.query = q.view();
    p.key = k.view();
    p.value = v.view();
  }
  PlainCall(const PlainCall&) = delete;
  PlainCall& operator=(const PlainCall&) = delete;

  // Numbers of a term, drawn, that want a gradient.
  TermData trained(const std::vector<int64_t>& shape) {
    return TermData::parameter(owned.emplace_back(float_tensor(rng, shape)).view(), true);
  }

  void forward() const { fused_forward(p, {out.view(), lse.view(), {}}); }
  void backward() { fused_backward(p, out.view(), lse.view(), dout.view(), {}, gradients()); }

  // Where the gradients go, those of the terms zeroed.
  ProblemGradients gradients() {
    terms = TermGradients::zeros(p.terms);
    ProblemGradients gradients;
    gradients.query = dq.view();
    gradients.key = dk.view();
    gradients.value = dv.view();
    gradients.terms = &terms;
    return gradients;
  }
};

inline ClassMap random_map(Rng& rng) {
  const int64_t lo = draw(rng, -20, 2), hi = lo + draw(rng, 0, 24);
  switch (draw(rng, 0, 2)) {
    case 0:
      return ClassMap::clamp(lo, hi, chance(rng, 0.3));
    case 1:
      return ClassMap::zero_outside(lo, hi, chance(rng, 0.3));
    default: {
      std::set<int64_t> starts;
      for (int64_t n = draw(rng, 1, 7); n > 0; --n) starts.insert(draw(rng, -70, 30));
      std::vector<int64_t> classes;
      for (size_t n = 0; n <= starts.size(); ++n) classes.push_back(draw(rng, -1, 6));
      classes.push_back(draw(rng, 0, 6));
      classes.erase(classes.begin());
      return ClassMap::thresholds({starts.begin(), starts.end()}, classes);
    }
  }
}

// A problem that owns its inputs.
struct Case {
  Problem p;
  Tensor q, k, v, dout, dlse, mask;
  std::vector<Tensor> storage;

  // Of the problem's sizes.
  void draw_inputs(Rng& rng) {
    q = float_tensor(rng, {p.batch, p.heads, p.queries, p.head_dim});
    k = float_tensor(rng, {p.batch, p.kv_heads, p.keys, p.head_dim});
    v = float_tensor(rng, {p.batch, p.kv_heads, p.keys, p.value_dim});
    dout = float_tensor(rng, {p.batch, p.heads, p.queries, p.value_dim});
    dlse = float_tensor(rng, {p.batch, p.heads, p.queries});
    p.query = q.view();
    p.key = k.view();
    p.value = v.view();
  }
  TermData term(Rng& rng, std::vector<int64_t> shape) {
    storage.push_back(float_tensor(rng, shape));
    return TermData::parameter(storage.back().view(), true, chance(rng, 0.3) ? 0.5 : 1.0);
  }
};

}  // namespace relpos::random_terms
