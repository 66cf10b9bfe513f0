// The results of a random case by both paths, and how they are compared. For the kernels' tests.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <list>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/half.h"
#include "kernels/block/kernels.h"
#include "kernels/reference/reference.h"
#include "testing/error_bound.h"
#include "testing/random_terms.h"
#include "values/term_kinds.h"

namespace relpos::random_terms {

struct Results {
  Tensor out, lse, softmax, dq, dk, dv;
  const Terms& problem;
  TermGradients terms;
  std::vector<double> mask;
  std::vector<float> mask_rows;

  Results(const Case& c, DType dtype)
      : out(dtype, c.dout.view().dims()),
        lse(dtype, c.dlse.view().dims()),
        softmax(dtype, {c.p.batch, c.p.heads, c.p.queries, 2}),
        dq(dtype, c.q.view().dims()),
        dk(dtype, c.k.view().dims()),
        dv(dtype, c.v.view().dims()),
        problem(c.p.terms),
        terms(TermGradients::zeros(c.p.terms)),
        mask(static_cast<size_t>(c.mask.view().given() ? c.mask.view().numel() : 0), 0.0) {}

  ProblemGradients gradients(const Case& c) {
    ProblemGradients g;
    g.query = dq.view();
    g.key = dk.view();
    g.value = dv.view();
    g.terms = &terms;
    if (!c.p.visible.mask.given()) return g;
    g.mask = &mask;
    g.mask_index = c.p.visible.mask;
    return g;
  }

  // As the fused path gives that of a mask whose elements are one pair's each.
  ProblemGradients gradients_by_rows(const Case& c) {
    ProblemGradients g = gradients(c);
    if (g.mask == nullptr || shares_elements(g.mask_index)) return g;
    mask_rows.assign(mask.size(), 0.0f);
    g.mask_rows = g.mask_index;
    g.mask_rows.dtype = DType::kFloat32;
    g.mask_rows.data = mask_rows.data();
    g.mask = nullptr;
    return g;
  }

  // Every number, with a name for messages.
  std::vector<std::pair<std::string, std::vector<double>>> all() const {
    std::vector<std::pair<std::string, std::vector<double>>> list;
    const auto tensor = [&](const char* name, const Tensor& t) {
      std::vector<double> values;
      for (int64_t n = 0; n < t.view().numel(); ++n) values.push_back(t.view().load(n));
      list.emplace_back(name, values);
    };
    tensor("out", out);
    tensor("lse", lse);
    tensor("dq", dq);
    tensor("dk", dk);
    tensor("dv", dv);
    for_each_number(problem, terms, [&](const char* name, auto&&, const auto& gradient, HeadAxis) {
      list.emplace_back(name, gradient);
    });
    std::vector<double> of_mask = mask;
    for (size_t n = 0; n < mask_rows.size(); ++n) of_mask[n] = static_cast<double>(mask_rows[n]);
    list.emplace_back("mask", of_mask);
    return list;
  }
};

inline Results run_reference(const Case& c) {
  Results r(c, DType::kFloat64);
  reference_forward(c.p, {r.out.view(), r.lse.view(), {}});
  reference_backward(c.p, r.out.view(), {}, c.dout.view(), c.dlse.view(), r.gradients(c));
  return r;
}

inline Results run_fused(const Case& c) {
  Results r(c, DType::kFloat32);
  fused_forward(c.p, {r.out.view(), r.lse.view(), r.softmax.view()});
  fused_backward(c.p, r.out.view(), r.softmax.view(), c.dout.view(), c.dlse.view(),
                 r.gradients_by_rows(c));
  return r;
}

// With RELPOS_FEW=1 (scripts/sanitize.sh, arm.sh) tests that go through many sizes leave some out, too.
inline bool few_cases() { return std::getenv("RELPOS_FEW") != nullptr; }

// So many, and 6 times as many with RELPOS_FULL=1; an eighth with RELPOS_FEW=1.
inline int cases(int few) {
  if (few_cases()) return (few + 7) / 8;
  return std::getenv("RELPOS_FULL") != nullptr ? 6 * few : few;
}

inline auto drawn(const Longer& longer = {}) {
  return [longer](uint64_t seed) { return random_case(seed, longer); };
}

inline bool any(const Case&) { return true; }

inline bool on_fused_path(const Case& c) { return fused_supports(c.p, nullptr); }

// Calls f(case, seed) for the next `count` cases that are wanted, until one fails.
template <typename Make, typename Wanted, typename F>
void for_cases(int count, const Make& make, const Wanted& wanted, const F& f, uint64_t seed = 0) {
  for (; count > 0 && !testing::Test::HasFatalFailure(); ++seed) {
    Case c = make(seed);
    if (!wanted(c)) continue;
    --count;
    f(c, seed);
  }
}

// That every number has the same bits.
inline void expect_same(const Results& got, const Results& want, const std::string& note) {
  const auto a = got.all(), b = want.all();
  for (size_t n = 0; n < a.size(); ++n) {
    const auto& [name, numbers] = a[n];
    ASSERT_EQ(numbers.size(), b[n].second.size());
    for (size_t i = 0; i < numbers.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint64_t>(numbers[i]), std::bit_cast<uint64_t>(b[n].second[i]))
          << name << "[" << i << "], " << note;
    }
  }
}

// |got - want| <= u |want| + bound + 2^-126, u being float32's rounding of the results it stores, and
// 2^-126 what a result may lose near the end of float32's range.
inline void expect_within(const Results& got, const Results& want, const Results& bounds,
                          uint64_t seed) {
  const auto a = got.all(), b = want.all(), most = bounds.all();
  for (size_t n = 0; n < a.size(); ++n) {
    ASSERT_EQ(a[n].second.size(), b[n].second.size());
    for (size_t i = 0; i < a[n].second.size(); ++i) {
      const double x = a[n].second[i], y = b[n].second[i];
      if (x == y) continue;
      ASSERT_NEAR(x, y, most[n].second[i] + error_bound::kEps * std::fabs(y) + error_bound::kLeast)
          << a[n].first << "[" << i << "], seed " << seed;
    }
  }
}

// Results of two threads are within the bound; where they are not compared, the call is made all the same.
inline void expect_the_reference(Case c, uint64_t seed, bool compared = true) {
  c.p.threads = 2;
  const Results found = run_fused(c);
  if (!compared) return;
  const Results exact = run_reference(c);
  Results bounds(c, DType::kFloat64);
  error_bound::fill(c, exact, bounds);
  expect_within(found, exact, bounds, seed);
}

// The kernels of this machine with every unit for bfloat16, emulated or not.
inline const std::list<Kernels>& unit_kernels() {
  static const std::list<Kernels> all = [] {
    std::list<Kernels> found;
    for (const auto* units : {&usable_units(), &emulated_units()}) {
      for (const MatrixUnit& unit : *units) found.push_back(with_unit(tile_kernels(), unit));
    }
    return found;
  }();
  return all;
}

inline void round_numbers(const std::vector<Tensor*>& tensors) {
  for (Tensor* x : tensors) {
    for (int64_t n = 0; n < x->view().numel(); ++n) {
      float& value = x->data<float>()[n];
      value = widen_bfloat16(round_bfloat16(value));
    }
  }
}

// The case with queries, keys, values and gradients of outputs that are numbers of bfloat16.
inline Case narrowed(Case c) {
  round_numbers({&c.q, &c.k, &c.v, &c.dout});
  return c;
}

// Of each tensor of numbers, the root of the sum of the squares of got - want.
inline std::vector<double> distances(const Results& got, const Results& want) {
  const auto a = got.all(), b = want.all();
  std::vector<double> all;
  for (size_t n = 0; n < a.size(); ++n) {
    double sum = 0.0;
    for (size_t i = 0; i < a[n].second.size(); ++i) {
      const double x = a[n].second[i], y = b[n].second[i];
      if (x != y) sum += (x - y) * (x - y);
    }
    all.push_back(std::sqrt(sum));
  }
  return all;
}

// What roundings to bfloat16 do to each tensor of results: root mean squares of the distances from `exact`
// where each query, key, value and gradient of an output is off at random by up to half a step.
inline std::vector<double> rounding_noise(const Case& c, const Results& exact) {
  constexpr int kDraws = 32;
  Rng rng(0);
  std::uniform_real_distribution<double> error(-0x1p-8, 0x1p-8);
  const auto disturbed = [&](const Tensor& x) {
    Tensor to(DType::kFloat64, x.view().dims());
    for (int64_t n = 0; n < x.view().numel(); ++n) {
      to.data<double>()[n] = x.view().load(n) * (1.0 + error(rng));
    }
    return to;
  };
  std::vector<double> all(exact.all().size(), 0.0);
  for (int n = 0; n < kDraws; ++n) {
    Case off = c;
    for (Tensor* x : {&off.q, &off.k, &off.v, &off.dout}) *x = disturbed(*x);
    off.p.query = off.q.view();
    off.p.key = off.k.view();
    off.p.value = off.v.view();
    const std::vector<double> one = distances(run_reference(off), exact);
    for (size_t x = 0; x < all.size(); ++x) all[x] = std::hypot(all[x], one[x] / std::sqrt(kDraws));
  }
  return all;
}

// Root mean squares: a wrong factor is within the bounds of single numbers where many add up to few. They
// are within 0.05 of those of the exact numbers unless addends of both signs happen to leave little of their
// sum. What the roundings leave does not shrink with it, so that their noise is the measure there. It is
// about twice the units' own error (0.5 the median, 0.9 the most of tensors of many numbers); 4 times as much
// is 8 of its standard deviations, for a tensor may have one number.
inline void expect_near_on_average(const Case& c, const Results& got, const Results& want,
                                   uint64_t seed) {
  const auto a = got.all(), b = want.all();
  const std::vector<double> error = distances(got, want);
  std::vector<double> noise;
  for (size_t n = 0; n < a.size(); ++n) {
    double size = 0.0;
    for (size_t i = 0; i < a[n].second.size(); ++i) {
      const double y = b[n].second[i];
      if (a[n].second[i] != y) size += y * y;
    }
    if (error[n] <= 0.05 * std::sqrt(size)) continue;
    if (noise.empty()) noise = rounding_noise(c, want);
    EXPECT_LE(error[n], 4.0 * noise[n]) << a[n].first << ", seed " << seed;
  }
}

// Each unit is tried. A weight, or what a rotation has turned, is rounded twice: a step of bfloat16.
inline void expect_the_reference_on_units(Case& c, uint64_t seed) {
  const Results exact = run_reference(c);
  Results bounds(c, DType::kFloat64);
  error_bound::fill(c, exact, bounds, 0x1p-7);
  for (const Kernels& kernels : unit_kernels()) {
    SCOPED_TRACE(kernels.name);
    c.p.kernels = &kernels;
    const Results found = run_fused(c);
    expect_within(found, exact, bounds, seed);
    if (testing::Test::HasFatalFailure()) return;
    expect_near_on_average(c, found, exact, seed);
  }
}

}  // namespace relpos::random_terms
