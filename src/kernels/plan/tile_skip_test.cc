#include "kernels/plan/tile_skip.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/drive/forward_block.h"
#include "kernels/fused.h"
#include "testing/random_terms.h"

namespace relpos {
namespace {

using random_terms::float_tensor;
using random_terms::Rng;

// Attention with slopes of 1/2, 1/4, .. a head, as a linear bias has them.
struct Sloped : random_terms::PlainCall {
  static constexpr int64_t kHeads = 3, kLength = 1000, kDim = 24;
  Tensor slopes{DType::kFloat32, {2, kHeads}};

  // The last `queries` of kLength positions; `shared` heads read one key head.
  explicit Sloped(bool causal, int64_t queries = kLength, bool shared = false)
      : Sloped(Rng(7), causal, queries, shared) {}
  Sloped(Rng rng, bool causal, int64_t queries, bool shared)
      : PlainCall(rng, queries, kLength, kDim, 1, kHeads, shared ? 1 : kHeads) {
    for (int64_t h = 0; h < kHeads; ++h) {
      slopes.data<float>()[h] = std::exp2(-static_cast<float>(h + 1));
      slopes.data<float>()[kHeads + h] = -slopes.data<float>()[h];
    }
    p.scale = 0.2;
    p.threads = 2;
    const int64_t first = kLength - queries;
    p.positions.q = {first};
    for (int64_t i = first; causal && i < kLength; ++i) p.visible.span.emplace_back(0, i + 1);
    DistanceBias bias;
    bias.slopes = TermData::parameter(slopes.view(), true);
    p.terms.biases.push_back(bias);
  }

  // Every number that a forward and a backward pass give.
  std::vector<float> run(bool skip) {
    p.skip_tiles = skip;
    fused_forward(p, {out.view(), lse.view(), {}});
    fused_backward(p, out.view(), lse.view(), dout.view(), {}, gradients());
    std::vector<float> all;
    for (const Tensor* t : {&out, &lse, &dq, &dk, &dv}) {
      const auto* x = static_cast<const float*>(t->view().data);
      all.insert(all.end(), x, x + t->view().numel());
    }
    for (double x : terms.biases[0].slopes) all.push_back(static_cast<float>(x));
    return all;
  }
};

TEST(Skip, ChangesNoBit) {
  for (const bool causal : {true, false}) {
    Sloped a(causal);
    const std::vector<float> skipped = a.run(true), whole = a.run(false);
    ASSERT_EQ(skipped.size(), whole.size());
    for (size_t n = 0; n < whole.size(); ++n) ASSERT_EQ(skipped[n], whole[n]) << n;
  }
}

TEST(Skip, ChangesNoBitOfFewQueries) {
  for (const int64_t queries : {1, 7, 16}) {
    for (const bool shared : {true, false}) {
      Sloped a(true, queries, shared);
      ASSERT_EQ(a.run(true), a.run(false)) << queries << (shared ? ", shared keys" : "");
    }
  }
}

TEST(Skip, ReadsATileThatOneHeadOfABlockNeeds) {
  Sloped a(false, 7, true);
  a.p.positions.q = {0};  // the keys lie ahead: the first tile settles the references
  a.slopes.data<float>()[2 * Sloped::kHeads - 1] = 0.0f;  // of the last head no weight falls
  Workspace memory;
  ASSERT_TRUE(Plan(a.p, false, memory).skips_tiles);
  ASSERT_EQ(a.run(true), a.run(false));
}

TEST(Skip, LeavesOutTilesThatUnderflowAndNoOthers) {
  Sloped a(true);
  Workspace memory;
  const Plan plan(a.p, false, memory);
  ASSERT_TRUE(plan.skips_tiles);
  ForwardBlock x(plan, memory);
  TileSkip skip(plan);
  TileCache cache(plan, 1, 1, memory);
  Stopper stopper(nullptr);
  cache.start(0);
  x.begin(0);
  x.add_rows(0, 900, 960);
  x.start();
  skip.start(x.block);
  const KeyTile* tiles = nullptr;
  cache.read(0, 0, 0, plan.tiles, stopper, 0, [&](const KeyTile* some, int64_t t, int64_t) {
    if (t == 0) tiles = some;
  });
  EXPECT_EQ(x.start_tile(0, plan.tiles), 13);  // key 900 is in tile 14; a peak is that of 64 cells
  EXPECT_FALSE(skip.skips(x.block, tiles[0], 0, x.state.m)) << "no reference yet";
  x.forward(tiles + 14, 14, 1);
  // Slope 1/2 is 0.72 in units of log2: 126 of them are 175 keys, and some for the products.
  EXPECT_TRUE(skip.skips(x.block, tiles[0], 0, x.state.m));
  EXPECT_TRUE(skip.skips(x.block, tiles[8], 8, x.state.m));
  EXPECT_FALSE(skip.skips(x.block, tiles[12], 12, x.state.m));
  EXPECT_FALSE(skip.skips(x.block, tiles[13], 13, x.state.m));
}

TEST(Skip, ReadsATileWhoseKeysAreNotFinite) {
  Sloped a(true);
  a.k.data<float>()[3] = NAN;
  const std::vector<float> all = a.run(true);
  EXPECT_TRUE(std::isnan(all[999 * Sloped::kDim]));
}

TEST(Skip, ReadsATileWhoseValuesAreNotFinite) {
  for (const bool causal : {true, false}) {
    Sloped a(causal);
    a.v.data<float>()[0] = NAN;
    const std::vector<float> all = a.run(true);
    EXPECT_TRUE(std::isnan(all[999 * Sloped::kDim])) << causal;
  }
}

}  // namespace
}  // namespace relpos
