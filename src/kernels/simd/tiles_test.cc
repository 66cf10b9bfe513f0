// Tables over distances where most tiles lie on one side of every window, or where each group of queries
// reads cells of its own: against the reference path, in float32 and on every unit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/buffer.h"
#include "base/half.h"
#include "kernels/block/kernels.h"
#include "kernels/drive/query_block.h"
#include "kernels/terms/value_tables.h"
#include "testing/random_results.h"

namespace relpos {
namespace {

using namespace random_terms;  // NOLINT: this test's cases

// Clipped on both sides, on one or on neither; wholly past, wholly future, or wider than the keys.
std::vector<ClassMap> maps() {
  return {ClassMap::clamp(-40, 40),
          ClassMap::clamp(-9, -3, true),
          ClassMap::clamp(-2000, -1500),
          ClassMap::clamp(1500, 1530),
          ClassMap::zero_outside(-64, 0),
          ClassMap::zero_outside(-1500, 1500),
          ClassMap::thresholds({-50, -20, 10}, {-1, 0, 1, 2}),
          ClassMap::thresholds({-20, 10, 31}, {2, 1, 0, -1}),
          ClassMap::clamp(-17, 1400)};
}

// Who sees whom: all, causal, a band of 150 keys.
void draw_sight(Rng& rng, Problem& p, int64_t offset) {
  const int64_t kind = draw(rng, 0, 2);
  for (int64_t i = 0; kind > 0 && i < p.queries; ++i) {
    const int64_t hi = std::clamp<int64_t>(offset + i + 1, 0, p.keys);
    p.visible.span.emplace_back(kind == 1 ? 0 : std::max<int64_t>(0, hi - 150), hi);
  }
  for (int64_t n = 0; chance(rng, 0.3) && n < p.batch * p.tiles(); ++n) {
    p.visible.key_bits.resize(p.batch * p.tiles(), ~uint64_t{0});
    p.visible.key_bits[n] = rng() | rng();
  }
}

void draw_far_tables(Rng& rng, Case& c) {
  const std::vector<ClassMap> all = maps();
  const auto map = [&] { return all[draw(rng, 0, static_cast<int64_t>(all.size()) - 1)]; };
  Terms& t = c.p.terms;
  const auto table = [&](const ClassMap& of, int64_t columns) {
    return c.term(rng, table_shape(rng, c.p, of, columns));
  };
  for (int64_t n = draw(rng, 0, 2); n > 0; --n) {
    const ClassMap of = map();
    RowTable& rows = add_term(t.row_tables, of, table(of, c.p.head_dim));
    if (chance(rng, 0.3)) rows.added = c.term(rng, {c.p.heads, c.p.head_dim});
  }
  for (int64_t n = draw(rng, 0, 3); n > 0; --n) {
    const ClassMap of = map();
    add_term(t.value_tables, of, table(of, c.p.value_dim));
  }
  const int64_t biases = draw(rng, 0, 6) / 3 * 3;  // more than are read in registers, or none
  for (int64_t n = biases; n > 0; --n) {
    const ClassMap of = map();
    add_term(t.biases, of, c.term(rng, {c.p.heads, of.classes()}));
  }
}

Case far_case(uint64_t seed) {
  Rng rng(seed);
  Case c;
  Problem& p = c.p;
  const int64_t batch = draw(rng, 1, 2), heads = draw(rng, 1, 2);
  const int64_t queries = one_of(rng, {1, 9, 17, 96, 100, 131});
  set_sizes(p, batch, heads, 1, queries, one_of(rng, {200, 333, 500, 777}));
  p.head_dim = one_of(rng, {3, 8, 16, 20});
  p.value_dim = chance(rng, 0.5) ? p.head_dim : one_of(rng, {5, 16});
  p.scale = 0.4;
  const int64_t offset = one_of(rng, {0, p.keys - p.queries, -350, 480});
  p.positions.q = {offset};
  p.visible.rows = 1;
  c.draw_inputs(rng);
  draw_sight(rng, p, offset);
  draw_far_tables(rng, c);
  if (chance(rng, 0.3)) p.dropout = Dropout(0.25, rng());
  if (chance(rng, 0.2)) p.softcap = 3.0;
  if (chance(rng, 0.2)) p.terms.sinks.push_back(c.term(rng, {p.heads}));
  return c;
}

TEST(FarTiles, EqualReference) {
  for_cases(cases(60), far_case, any,
            [](const Case& c, uint64_t seed) { expect_the_reference(c, seed); });
}

TEST(FarTiles, EqualReferenceOnEveryUnit) {
  const auto narrow = [](uint64_t seed) { return narrowed(far_case(seed)); };
  for_cases(cases(12), narrow, any, expect_the_reference_on_units, 100);
}

// 20 queries and 400 keys, whose scores are 0 up to key 200, `middle` up to key 300, then `top`.
Case rising_case(Rng& rng, float middle, float top) {
  constexpr int64_t kQueries = 20, kKeys = 400, kDim = 16;
  Case c;
  Problem& p = c.p;
  set_sizes(p, 1, 1, 1, kQueries, kKeys);
  p.head_dim = p.value_dim = kDim;
  c.draw_inputs(rng);
  for (int64_t i = 0; i < kQueries; ++i) c.q.data<float>()[i * kDim] = 1.0f;
  for (int64_t j = 0; j < kKeys; ++j) {
    float* key = c.k.data<float>() + j * kDim;
    std::fill_n(key, kDim, 0.0f);
    key[0] = j < 200 ? 0.0f : j < 300 ? middle : top;
  }
  return c;
}

void add_value_table(Rng& rng, Case& c, const ClassMap& map) {
  add_term(c.p.terms.value_tables, map, c.term(rng, {map.classes(), c.p.value_dim}));
}

// A row's reference rises in a tile that is far for one table, or for two, on one side or on both: what
// their sums hold is scaled down, too.
TEST(FarTiles, SumsOfFarWeightsFollowTheReference) {
  Rng rng(11);
  const std::vector<std::vector<ClassMap>> all = {
      {ClassMap::clamp(-3, 5)},
      {ClassMap::clamp(-3, 5), ClassMap::clamp(-9, 2)},
      {ClassMap::clamp(-3, 5), ClassMap::clamp(360, 390)},
      {ClassMap::zero_outside(-3, 5), ClassMap::clamp(-1, 1)},
  };
  for (const std::vector<ClassMap>& maps : all) {
    Case c = rising_case(rng, 200.0f, 250.0f);  // beyond what a reference stays below
    for (const ClassMap& map : maps) add_value_table(rng, c, map);
    expect_the_reference(c, maps.size());
  }
}

// Weights of up to 2^58 times values of 1e24 overflow: the rows are computed once more, and what was
// summed of far tiles the first time is gone.
TEST(FarTiles, RowsThatOverflowStartAgain) {
  Rng rng(12);
  Case c = rising_case(rng, 40.0f, 40.0f);
  add_value_table(rng, c, ClassMap::clamp(-3, 5));
  for (int64_t n = 0; n < c.v.view().numel(); ++n) c.v.data<float>()[n] *= 1e24f;
  const Results fused = run_fused(c), exact = run_reference(c);
  for (int64_t n = 0; n < exact.out.view().numel(); ++n) {
    const double expected = exact.out.view().load(n);
    ASSERT_TRUE(std::isfinite(expected));
    EXPECT_NEAR(fused.out.view().load(n), expected, 1e24 * 1e-5) << n;
  }
}

// More panels than a tile notes as far.
TEST(FarTiles, ManyBiasesEqualReference) {
  Rng rng(13);
  Case c = rising_case(rng, 1.0f, -1.0f);
  for (int n = 0; n < 40; ++n) {
    const ClassMap map = ClassMap::clamp(-n, 5);
    add_term(c.p.terms.biases, map, c.term(rng, {1, map.classes()}));
  }
  expect_the_reference(c, 0);
}

// What the groups of a causal block read of a table of distances, and which groups read some of them.
TEST(FarTiles, GroupsReadWhatTheirQueriesSee) {
  constexpr int64_t kLength = 1000, kFirst = 400;
  PlainCall call(12, kLength, kLength, 8);
  for (int64_t i = 0; i < kLength; ++i) call.p.visible.span.emplace_back(0, i + 1);
  add_term(call.p.terms.row_tables, ClassMap::zero_outside(1 - kLength, 0),
           call.trained({kLength, 8}));
  Workspace memory;
  const Plan plan(call.p, false, memory);
  QueryBlock x(plan, memory);
  x.begin(0);
  x.add_rows(0, kFirst, kFirst + kRows);
  x.load();
  const GroupCuts cuts(x.block, plan.row_tables[0]);
  const Cut all{0, kLength};
  // Row r sees distances -(400 + r) to 0: cells 599 - r to 999.
  int next = 0;
  cuts.for_each_run(kRows, all, [&](int row, int count, const Cut& own) {
    EXPECT_EQ(row, next);
    next += count;
    const int64_t first = kLength - 1 - kFirst - (next - 1);
    EXPECT_EQ(own.first, first / kLanes * kLanes);
    EXPECT_EQ(own.end(), kLength);
  });
  EXPECT_EQ(next, kRows);
  std::vector<int> seen(kLength, 0);
  cuts.for_each_strip(kRows, all, [&](const Cut& own, int row, int count) {
    for (int64_t c = own.first; c < own.end(); ++c) {
      ++seen[c];
      EXPECT_LE(row, std::max<int64_t>(0, kLength - 1 - kFirst - c)) << c;
      EXPECT_EQ(row + count, kRows);
    }
  });
  for (int64_t c = 0; c < kLength; ++c) {
    const int64_t first = kLength - kFirst - kRows;
    ASSERT_LE(seen[c], c < first - 2 * kLanes ? 0 : 1) << c;
    ASSERT_GE(seen[c], c < first ? 0 : 1) << c;
  }
}

}  // namespace
}  // namespace relpos
