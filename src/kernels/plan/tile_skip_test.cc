#include "kernels/plan/tile_skip.h"

#include <gtest/gtest.h>

#include <cmath>
#include <tuple>
#include <utility>

#include "kernels/drive/forward_block.h"
#include "testing/random_terms.h"

namespace relpos {
namespace {

// Attention with slopes of 1/2, 1/4, .. a head, as a linear bias has them.
struct Sloped : random_terms::PlainCall {
  static constexpr int64_t kHeads = 3, kLength = 1000, kDim = 24;
  Tensor slopes{DType::kFloat32, {2, kHeads}};

  // The last `queries` of kLength positions; `shared` heads read one key head.
  explicit Sloped(bool causal, int64_t queries = kLength, bool shared = false)
      : PlainCall(7, queries, kLength, kDim, 1, kHeads, shared ? 1 : kHeads) {
    for (int64_t h = 0; h < kHeads; ++h) {
      slopes.data<float>()[h] = std::exp2(-static_cast<float>(h + 1));
      slopes.data<float>()[kHeads + h] = -slopes.data<float>()[h];
    }
    p.scale = 0.2;
    p.threads = 2;
    const int64_t first = kLength - queries;
    p.positions.q = {first};
    for (int64_t i = first; causal && i < kLength; ++i) p.visible.span.emplace_back(0, i + 1);
    p.terms.biases.emplace_back().slopes = TermData::parameter(slopes.view(), true);
  }

  // Every number that a forward and a backward pass give.
  std::vector<float> run(bool skip) {
    p.skip_tiles = skip;
    forward();
    backward();
    std::vector<float> all;
    for (const Tensor* t : {&out, &lse, &dq, &dk, &dv}) {
      all.insert(all.end(), t->data<float>(), t->data<float>() + t->view().numel());
    }
    for (double x : terms.biases[0].slopes) all.push_back(static_cast<float>(x));
    return all;
  }
};

TEST(Skip, ChangesNoBit) {
  for (const auto& [causal, queries, shared] : {std::tuple{true, Sloped::kLength, false},
                                                {false, Sloped::kLength, false},
                                                {true, 1, true},
                                                {true, 1, false},
                                                {true, 7, true},
                                                {true, 7, false},
                                                {true, 16, true},
                                                {true, 16, false}}) {
    Sloped a(causal, queries, shared);
    ASSERT_EQ(a.run(true), a.run(false)) << causal << ", " << queries << ", " << shared;
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

TEST(Skip, ReadsATileThatIsNotFinite) {
  for (const auto& [causal, tensor] :
       {std::pair{true, &Sloped::k}, {true, &Sloped::v}, {false, &Sloped::v}}) {
    Sloped a(causal);
    (a.*tensor).data<float>()[0] = NAN;
    EXPECT_TRUE(std::isnan(a.run(true)[999 * Sloped::kDim])) << causal;
  }
}

}  // namespace
}  // namespace relpos
