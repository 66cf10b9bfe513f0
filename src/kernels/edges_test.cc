// Corners of the fused path that random cases seldom meet.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/block_setup.h"
#include "kernels/fused.h"
#include "kernels/random_terms.h"
#include "kernels/reference.h"

namespace relpos {
namespace {

using random_terms::float_tensor;
using random_terms::Rng;

struct Plain {
  Problem p;
  Tensor q, k, v, out, lse;

  Plain(int64_t queries, int64_t keys, int64_t dim) {
    Rng rng(3);
    for (Tensor* t : {&q, &out}) *t = float_tensor(rng, {1, 1, queries, dim});
    for (Tensor* t : {&k, &v}) *t = float_tensor(rng, {1, 1, keys, dim});
    lse = float_tensor(rng, {1, 1, queries});
    p.batch = p.heads = p.kv_heads = 1;
    p.queries = p.positions.queries = p.visible.queries = queries;
    p.keys = p.positions.keys = p.visible.keys = keys;
    p.head_dim = p.value_dim = dim;
    p.positions.q = p.positions.k = {0};
    p.threads = 1;
    p.query = q.view();
    p.key = k.view();
    p.value = v.view();
  }
};

TEST(Edges, WeightsOfZeroMeetNoNan) {
  for (const int64_t queries : {3, 20, 130}) {
    for (const int64_t dim : {8, 16}) {
      Plain a(queries, 70, dim);
      std::fill_n(a.q.data<float>(), queries * dim, 1.0f);
      std::fill_n(a.k.data<float>(), 70 * dim, -INFINITY);
      a.v.data<float>()[5] = NAN;
      a.v.data<float>()[dim] = INFINITY;
      fused_forward(a.p, a.out.view(), a.lse.view());
      for (int64_t n = 0; n < queries * dim; ++n) ASSERT_EQ(a.out.data<float>()[n], 0.0f) << n;
      for (int64_t n = 0; n < queries; ++n) ASSERT_EQ(a.lse.data<float>()[n], -INFINITY);
    }
  }
}

// Keys start at position 100: under a causal boundary the first block sees none of them, and the
// table's window is far wider than the keys.
struct Late : Plain {
  static constexpr int64_t kQueries = 900, kKeys = 8, kDim = 16;
  Tensor rows, values, dout;

  Late() : Plain(kQueries, kKeys, kDim) {
    Rng rng(4);
    rows = float_tensor(rng, {kQueries, kDim});
    values = float_tensor(rng, {kQueries, kDim});
    dout = float_tensor(rng, {1, 1, kQueries, kDim});
    p.positions.k = {100};
    for (int64_t i = 0; i < kQueries; ++i) {
      p.visible.span.emplace_back(0, std::clamp<int64_t>(i - 99, 0, kKeys));
    }
    const ClassMap map = ClassMap::zero_outside(1 - kQueries, 0);
    p.terms.row_tables.resize(1);
    p.terms.row_tables[0].map = map;
    p.terms.row_tables[0].table = TermData::parameter(rows.view(), true);
    p.terms.value_tables.resize(1);
    p.terms.value_tables[0].map = map;
    p.terms.value_tables[0].table = TermData::parameter(values.view(), true);
  }

  using Pass = void (*)(const Problem&, const TensorView&, const TensorView&);
  std::vector<double> forward(Pass pass) {
    pass(p, out.view(), lse.view());
    return {out.data<float>(), out.data<float>() + kQueries * kDim};
  }
};

TEST(Edges, ABlindBlockStaysInItsCells) {
  Late a;
  const Plan plan(a.p, false);
  BlockScratch x(plan, tile_kernels());
  x.begin(0);
  for (int64_t i = 0; i < kRows; ++i) x.add_row(0, i);
  x.load_queries();
  const Window& window = plan.row_tables[0].window;
  EXPECT_LE(x.cut(window).width, BlockScratch::max_cut(plan, window));

  const std::vector<double> got = a.forward(fused_forward), want = a.forward(reference_forward);
  for (size_t n = 0; n < want.size(); ++n) ASSERT_NEAR(got[n], want[n], 1e-5) << n;

  const auto gradients = [&](auto pass) {
    Tensor dq(DType::kFloat32, a.q.view().dims()), dk(DType::kFloat32, a.k.view().dims()),
        dv(DType::kFloat32, a.v.view().dims());
    TermGradients terms = TermGradients::zeros(a.p.terms);
    ProblemGradients g;
    g.query = dq.view();
    g.key = dk.view();
    g.value = dv.view();
    g.terms = &terms;
    pass(a.p, a.out.view(), a.lse.view(), a.dout.view(), TensorView(), g);
    std::vector<double> all = terms.row_tables[0].table;
    all.insert(all.end(), terms.value_tables[0].table.begin(), terms.value_tables[0].table.end());
    all.insert(all.end(), dq.data<float>(), dq.data<float>() + dq.view().numel());
    all.insert(all.end(), dk.data<float>(), dk.data<float>() + dk.view().numel());
    return all;
  };
  const std::vector<double> fused = gradients(fused_backward),
                            plain = gradients(reference_backward);
  for (size_t n = 0; n < plain.size(); ++n) {
    ASSERT_NEAR(fused[n], plain[n], 1e-3 * (1 + std::fabs(plain[n]))) << n;
  }
}

}  // namespace
}  // namespace relpos
