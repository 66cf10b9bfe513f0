// Random lists of terms with queries, keys and values in bfloat16: products by units, emulated ones
// among them, against the reference path.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <list>

#include "base/half.h"
#include "base/sanitized.h"
#include "kernels/block.h"
#include "kernels/random_results.h"

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

// A case whose queries, keys, values and gradients of outputs are numbers of bfloat16.
Case narrow_case(uint64_t seed) {
  Case c = random_case(seed);
  for (Tensor* x : {&c.q, &c.k, &c.v, &c.dout}) {
    for (int64_t n = 0; n < x->view().numel(); ++n) {
      float& value = x->data<float>()[n];
      value = widen_bfloat16(round_bfloat16(value));
    }
  }
  return c;
}

TEST(Units, TermsEqualReference) {
  for (uint64_t seed = 0; seed < static_cast<uint64_t>(cases(60)); ++seed) {
    Case c = narrow_case(seed);
    if (!fused_supports(c.p, nullptr)) continue;
    const Results exact = run_reference(c);
    Results bounds(c, DType::kFloat64);
    error_bound::fill(c, exact, bounds, kRounding);
    for (const Kernels& kernels : unit_kernels()) {
      SCOPED_TRACE(kernels.name);
      c.p.kernels = &kernels;
      expect_within(run_fused(c), exact, bounds, seed);
      if (HasFatalFailure()) return;
    }
  }
}

// Without a softmax to leave, what a rotation has turned is multiplied in bfloat16, too.
TEST(Units, TurnedTermsEqualReference) {
  int checked = 0;
  for (uint64_t seed = 0; checked < cases(12); ++seed) {
    Case c = narrow_case(seed);
    if (!fused_supports(c.p, nullptr) || c.p.queries <= 16 || c.p.keys < 2) continue;
    if (c.p.terms.rotations.empty() && c.p.terms.query_added.empty()) continue;
    ++checked;
    const Results exact = run_reference(c);
    Results bounds(c, DType::kFloat64);
    error_bound::fill(c, exact, bounds, kRounding);
    for (const Kernels& kernels : unit_kernels()) {
      SCOPED_TRACE(kernels.name);
      c.p.kernels = &kernels;
      const Tensor out(DType::kFloat32, c.dout.view().dims());
      fused_forward(c.p, {out.view(), {}, {}});
      bool rounded = false;
      const auto run = run_fused(c);
      for (int64_t n = 0; n < out.view().numel(); ++n) {
        const double want = exact.out.data<double>()[n];
        ASSERT_NEAR(out.data<float>()[n], want,
                    bounds.out.data<double>()[n] + error_bound::kEps * std::fabs(want))
            << "out[" << n << "], seed " << seed;
        rounded |= out.data<float>()[n] != run.out.data<float>()[n];
      }
      EXPECT_TRUE(rounded) << "a unit multiplied, seed " << seed;
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
    c.p.kernels = &unit_kernels().back();
    const auto clean = run_fused(c).all();
    for (Tensor* x : {&c.k, &c.v}) {
      const int64_t dim = x->view().shape[3];
      for (int64_t pair = 0; pair < c.p.batch * c.p.kv_heads; ++pair) {
        std::fill_n(x->data<float>() + (pair * c.p.keys + hidden) * dim, dim, std::nanf(""));
      }
    }
    const auto dirty = run_fused(c).all();
    for (size_t n = 0; n < clean.size(); ++n) {
      ASSERT_EQ(clean[n].second, dirty[n].second) << clean[n].first << ", seed " << seed;
    }
  }
}

}  // namespace
}  // namespace relpos
