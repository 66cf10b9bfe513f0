// Random lists of terms with queries, keys and values in bfloat16: products by units, emulated ones
// among them, against the reference path.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <list>

#include "base/half.h"
#include "base/sanitized.h"
#include "kernels/block/kernels.h"
#include "testing/random_results.h"

namespace relpos {
namespace {

using namespace random_terms;  // NOLINT: this test's cases

// Of a weight or of what a rotation has turned, twice: a step of bfloat16.
constexpr double kRounding = 0x1p-7;

int cases(int few) { return std::getenv("RELPOS_FULL") != nullptr ? 20 * few : few; }

// The kernels of this machine with every unit, emulated or not.
const std::list<Kernels>& unit_kernels() {
  static const std::list<Kernels> all = [] {
    std::list<Kernels> found;
    for (const auto* units : {&usable_units(), &emulated_units()}) {
      for (const MatrixUnit& unit : *units) found.push_back(with_unit(tile_kernels(), unit));
    }
    return found;
  }();
  return all;
}

void round_numbers(Tensor& x) {
  for (int64_t n = 0; n < x.view().numel(); ++n) {
    float& value = x.data<float>()[n];
    value = widen_bfloat16(round_bfloat16(value));
  }
}

// A case whose queries, keys, values and gradients of outputs are numbers of bfloat16.
Case narrow_case(uint64_t seed) {
  Case c = random_case(seed);
  for (Tensor* x : {&c.q, &c.k, &c.v, &c.dout}) round_numbers(*x);
  return c;
}

// Root mean squares: a wrong factor is within the bounds of single numbers where many add up to few.
void expect_near_on_average(const Results& got, const Results& want, uint64_t seed) {
  const auto a = got.all(), b = want.all();
  for (size_t n = 0; n < a.size(); ++n) {
    double error = 0.0, size = 0.0;
    for (size_t i = 0; i < a[n].second.size(); ++i) {
      const double x = a[n].second[i], y = b[n].second[i];
      if (x == y) continue;
      error += (x - y) * (x - y);
      size += y * y;
    }
    EXPECT_LE(std::sqrt(error), 0.05 * std::sqrt(size)) << a[n].first << ", seed " << seed;
  }
}

// On every unit.
void expect_reference(Case& c, uint64_t seed) {
  const Results exact = run_reference(c);
  Results bounds(c, DType::kFloat64);
  error_bound::fill(c, exact, bounds, kRounding);
  for (const Kernels& kernels : unit_kernels()) {
    SCOPED_TRACE(kernels.name);
    c.p.kernels = &kernels;
    const Results found = run_fused(c);
    expect_within(found, exact, bounds, seed);
    if (testing::Test::HasFatalFailure()) return;
    expect_near_on_average(found, exact, seed);
  }
}

TEST(Units, TermsEqualReference) {
  for (uint64_t seed = 0; seed < static_cast<uint64_t>(cases(60)); ++seed) {
    Case c = narrow_case(seed);
    if (!fused_supports(c.p, nullptr)) continue;
    expect_reference(c, seed);
    if (HasFatalFailure()) return;
  }
}

// Few random cases have a rotation that decays, whose queries are scaled before they are rounded.
TEST(Units, DecayingRotationsEqualReference) {
  int checked = 0;
  for (uint64_t seed = 1000; checked < cases(4); ++seed) {
    Case c = narrow_case(seed);
    const bool decays = std::any_of(c.p.terms.rotations.begin(), c.p.terms.rotations.end(),
                                    [](const Rotation& r) { return !r.log_decay.empty(); });
    if (!decays || !fused_supports(c.p, nullptr) || c.p.queries <= 16) continue;
    ++checked;
    expect_reference(c, seed);
    if (HasFatalFailure()) return;
  }
}

// What the weights sum up to before they are rounded: of two keys, one of which has the score 0.
TEST(Units, WeightsAreWithinTheirPolynomial) {
  constexpr int64_t kQueries = 512, kDim = 32;
  Rng rng(8);
  PlainCall c(rng, kQueries, 2, kDim);
  for (Tensor* x : {&c.q, &c.k}) std::fill_n(x->data<float>(), x->view().numel(), 0.0f);
  c.k.data<float>()[kDim] = -1.0f;
  for (int64_t i = 0; i < kQueries; ++i) {
    c.q.data<float>()[i * kDim] =
        widen_bfloat16(round_bfloat16(8.0f * static_cast<float>(i + 1) / kQueries));
  }
  for (const Kernels& kernels : unit_kernels()) {
    c.p.kernels = &kernels;
    fused_forward(c.p, {c.out.view(), c.lse.view(), {}});
    for (int64_t i = 0; i < kQueries; ++i) {
      const double weight = std::exp(-static_cast<double>(c.q.data<float>()[i * kDim]));
      // 2.9e-6 of the polynomial, and float32 beside it.
      EXPECT_NEAR(std::expm1(c.lse.data<float>()[i]), weight, 3.5e-6 * weight + 3e-7)
          << kernels.name << ", " << i;
    }
  }
}

// Without this, float32 products would pass the tests above.
TEST(Units, MultiplyInBothPasses) {
  Rng rng(3);
  PlainCall c(rng, 70, 130, 32, 1, 2, 1);
  for (Tensor* x : {&c.q, &c.k, &c.v, &c.dout}) round_numbers(*x);
  const auto run = [&](const Kernels& kernels) {
    c.p.kernels = &kernels;
    const Tensor softmax(DType::kFloat32, {1, 2, 70, 2});
    fused_forward(c.p, {c.out.view(), c.lse.view(), softmax.view()});
    fused_backward(c.p, c.out.view(), softmax.view(), c.dout.view(), {}, c.gradients());
    std::vector<std::vector<float>> results;
    for (Tensor* x : {&c.out, &c.dq, &c.dk, &c.dv}) {
      results.emplace_back(x->data<float>(), x->data<float>() + x->view().numel());
    }
    return results;
  };
  const auto plain = run(tile_kernels());
  for (const Kernels& kernels : unit_kernels()) {
    const auto own = run(kernels);
    for (size_t n = 0; n < own.size(); ++n)
      EXPECT_NE(own[n], plain[n]) << kernels.name << ", " << n;
  }
}

// Weights that are shown are those which have made the output: of rotated rows that are rounded.
TEST(Units, WeightsOfRotatedRowsMakeTheOutput) {
  int checked = 0;
  for (uint64_t seed = 0; checked < cases(6); ++seed) {
    Case c = narrow_case(seed);
    const bool turns = !c.p.terms.rotations.empty() || !c.p.terms.query_added.empty();
    const bool plain = c.p.terms.value_tables.empty() && !c.p.dropout.active();
    if (!fused_supports(c.p, nullptr) || !turns || !plain || c.p.queries <= 16) continue;
    ++checked;
    for (const Kernels& kernels : unit_kernels()) {
      c.p.kernels = &kernels;
      Results run = run_fused(c);
      const Tensor weights(DType::kFloat64, {c.p.batch, c.p.heads, c.p.queries, c.p.keys});
      fused_emit(c.p, run.softmax.view(), weights.view());
      const auto& [b, h, i] = std::array<int64_t, 3>{c.p.batch - 1, c.p.heads - 1, c.p.queries - 1};
      for (int64_t d = 0; d < c.p.value_dim; ++d) {
        double sum = 0.0, size = 0.0;
        for (int64_t j = 0; j < c.p.keys; ++j) {
          const double weight = weights.view().at({b, h, i, j});
          if (weight == 0.0) continue;
          const double value = c.v.view().at({b, h / c.p.group(), j, d});
          sum += weight * value;
          size += std::fabs(weight * value);
        }
        // Of a weight, and 64 steps of float32 for the sums.
        const double most = (0x1p-8 + 0x1p-17) * size + 1e-30;
        ASSERT_NEAR(run.out.view().at({b, h, i, d}), sum, most)
            << kernels.name << ", seed " << seed;
      }
    }
  }
}

// Keys and values of any address and stride are read by twos where they lie, or else copied.
TEST(Units, ReadAnyLayout) {
  constexpr int64_t kKeys = 75, kDim = 32;
  Rng rng(4);
  PlainCall c(rng, 40, kKeys, kDim, 1, 2, 2);
  for (Tensor* x : {&c.q, &c.k, &c.v}) round_numbers(*x);
  const auto inner = [&](const Tensor& from, const Tensor& wide, int64_t first) {
    TensorView view = wide.view();
    view.shape[3] = kDim;
    view.data = static_cast<std::byte*>(view.data) + 2 * first;
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t n = 0; n < kKeys * kDim; ++n) {
        const int64_t j = n / kDim, d = n % kDim;
        view.store(view.offset({0, h, j, d}), from.view().at({0, h, j, d}));
      }
    }
    return view;
  };
  const auto run = [&](const Kernels& kernels) {
    c.p.kernels = &kernels;
    fused_forward(c.p, {c.out.view(), c.lse.view(), {}});
    return std::vector<float>(c.out.data<float>(), c.out.data<float>() + c.out.view().numel());
  };
  for (const Kernels& kernels : unit_kernels()) {
    c.p.key = c.k.view();
    c.p.value = c.v.view();
    const std::vector<float> want = run(kernels);
    for (int64_t first = 0; first < 3; ++first) {
      for (int64_t gap = 0; gap < 4; ++gap) {
        const std::vector<int64_t> shape{1, 2, kKeys, kDim + gap + first};
        const Tensor wide_k(DType::kBFloat16, shape), wide_v(DType::kBFloat16, shape);
        c.p.key = inner(c.k, wide_k, first);
        c.p.value = inner(c.v, wide_v, first);
        EXPECT_EQ(run(kernels), want) << kernels.name << ", " << first << ", " << gap;
      }
    }
  }
}

TEST(Units, BitsDoNotDependOnThreads) {
  for (uint64_t seed = 0; seed < static_cast<uint64_t>(cases(8)); ++seed) {
    Case c = narrow_case(seed);
    if (!fused_supports(c.p, nullptr)) continue;
    for (const Kernels& kernels : unit_kernels()) {
      c.p.kernels = &kernels;
      c.p.threads = 1;
      const auto one = run_fused(c).all();
      c.p.threads = 4;
      const auto many = run_fused(c).all();
      for (size_t n = 0; n < one.size(); ++n) {
        ASSERT_EQ(one[n].second, many[n].second)
            << kernels.name << ", " << one[n].first << ", seed " << seed;
      }
    }
  }
}

// What NaN is hidden from has the bits that it would have without.
TEST(Units, HiddenNaNHasNoInfluence) {
  int checked = 0;
  for (uint64_t seed = 0; checked < cases(6); ++seed) {
    Case c = narrow_case(seed);
    if (!fused_supports(c.p, nullptr) || c.p.keys < 3 || c.p.queries <= 16) continue;
    ++checked;
    const int64_t hidden = c.p.keys / 2;
    c.p.visible.key_bits.assign(c.p.batch * c.p.tiles(), ~uint64_t{0});
    for (int64_t b = 0; b < c.p.batch; ++b) {
      c.p.visible.key_bits[b * c.p.tiles() + hidden / kTile] &= ~(uint64_t{1} << (hidden % kTile));
    }
    std::vector<decltype(run_fused(c).all())> clean;
    for (const Kernels& kernels : unit_kernels()) {
      c.p.kernels = &kernels;
      clean.push_back(run_fused(c).all());
    }
    for (Tensor* x : {&c.k, &c.v}) {
      const int64_t dim = x->view().shape[3];
      for (int64_t pair = 0; pair < c.p.batch * c.p.kv_heads; ++pair) {
        std::fill_n(x->data<float>() + (pair * c.p.keys + hidden) * dim, dim, std::nanf(""));
      }
    }
    for (const Kernels& kernels : unit_kernels()) {
      c.p.kernels = &kernels;
      const auto dirty = run_fused(c).all();
      for (size_t n = 0; n < dirty.size(); ++n) {
        ASSERT_EQ(clean.front()[n].second, dirty[n].second)
            << kernels.name << ", " << dirty[n].first << ", seed " << seed;
      }
      clean.erase(clean.begin());
    }
  }
}

// A NaN is in the output of every row that sees it: of its own query, or of all that see the key.
TEST(Units, NaNIsSeen) {
  constexpr int64_t kQueries = 40, kKeys = 70, kDim = 32, kRow = 17, kKey = 66;
  for (const bool of_key : {false, true}) {
    Rng rng(7);
    PlainCall c(rng, kQueries, kKeys, kDim);
    for (Tensor* x : {&c.q, &c.k, &c.v}) round_numbers(*x);
    Tensor& x = of_key ? c.k : c.q;
    std::fill_n(x.data<float>() + (of_key ? kKey : kRow) * kDim, kDim, std::nanf(""));
    for (const Kernels& kernels : unit_kernels()) {
      c.p.kernels = &kernels;
      fused_forward(c.p, {c.out.view(), c.lse.view(), {}});
      for (int64_t n = 0; n < kQueries * kDim; ++n) {
        ASSERT_EQ(std::isnan(c.out.data<float>()[n]), of_key || n / kDim == kRow)
            << kernels.name << ", " << n << (of_key ? ", of a key" : ", of a query");
      }
    }
  }
}

// A query and a gradient of outputs that are NaN reach the keys that their rows see, and no others.
TEST(Units, NaNRowsReachOnlyTheKeysThatTheySee) {
  constexpr int64_t kQueries = 100, kKeys = 140, kDim = 32, kRow = 57, kSeen = 70;
  Rng rng(5);
  PlainCall c(rng, kQueries, kKeys, kDim);
  for (Tensor* x : {&c.q, &c.k, &c.v, &c.dout}) round_numbers(*x);
  c.p.visible.span.assign(kQueries, {0, kKeys});
  c.p.visible.span[kRow] = {0, kSeen};
  const Tensor softmax(DType::kFloat32, {1, 1, kQueries, 2});
  const auto run = [&](const Kernels& kernels) {
    c.p.kernels = &kernels;
    fused_forward(c.p, {c.out.view(), c.lse.view(), softmax.view()});
    fused_backward(c.p, c.out.view(), softmax.view(), c.dout.view(), {}, c.gradients());
    std::vector<std::vector<float>> results;
    for (const Tensor* x : {&c.dk, &c.dv}) {
      results.emplace_back(x->data<float>(), x->data<float>() + kKeys * kDim);
    }
    return results;
  };
  std::list<std::vector<std::vector<float>>> clean;
  for (const Kernels& kernels : unit_kernels()) clean.push_back(run(kernels));
  for (Tensor* x : {&c.q, &c.dout}) {
    std::fill_n(x->data<float>() + kRow * kDim, kDim, std::nanf(""));
  }
  for (const Kernels& kernels : unit_kernels()) {
    const auto dirty = run(kernels);
    for (size_t x = 0; x < dirty.size(); ++x) {
      for (int64_t n = 0; n < kKeys * kDim; ++n) {
        const float got = dirty[x][n];
        if (n / kDim < kSeen) {
          ASSERT_TRUE(std::isnan(got)) << kernels.name << ", " << x << ", " << n;
        } else {
          ASSERT_EQ(got, clean.front()[x][n]) << kernels.name << ", " << x << ", " << n;
        }
      }
    }
    clean.pop_front();
  }
}

// A row that is NaN skips no tile of its keys, however small their weights would have been.
TEST(Units, NaNRowsReachKeysWhoseWeightsUnderflow) {
  constexpr int64_t kQueries = 40, kKeys = 700, kDim = 32, kRow = 39, kFirst = 300;
  Rng rng(5);
  PlainCall c(rng, kQueries, kKeys, kDim);
  for (Tensor* x : {&c.q, &c.k, &c.v, &c.dout}) round_numbers(*x);
  const Tensor slopes(DType::kFloat32, {2, 1});
  slopes.data<float>()[0] = 2.0f;
  slopes.data<float>()[1] = -2.0f;
  c.p.terms.biases.emplace_back().slopes = TermData::parameter(slopes.view(), false);
  c.p.positions.q = {kKeys - kQueries};
  c.p.visible.span.assign(kQueries, {kFirst, kKeys});
  c.p.visible.span[kRow] = {0, kKeys};
  std::fill_n(c.k.data<float>(), kDim, std::nanf(""));
  const Tensor softmax(DType::kFloat32, {1, 1, kQueries, 2});
  for (const Kernels& kernels : unit_kernels()) {
    c.p.kernels = &kernels;
    fused_forward(c.p, {c.out.view(), c.lse.view(), softmax.view()});
    fused_backward(c.p, c.out.view(), softmax.view(), c.dout.view(), {}, c.gradients());
    for (int64_t n = 0; n < kQueries * kDim; ++n) {
      ASSERT_EQ(std::isnan(c.out.data<float>()[n]), n / kDim == kRow) << kernels.name << ", " << n;
    }
    for (int64_t n = 0; n < kKeys * kDim; ++n) {
      ASSERT_TRUE(std::isnan(c.dk.data<float>()[n])) << kernels.name << ", dk " << n;
      ASSERT_TRUE(std::isnan(c.dv.data<float>()[n])) << kernels.name << ", dv " << n;
    }
  }
}

}  // namespace
}  // namespace relpos
