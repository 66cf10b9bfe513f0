// Every term and every mask at once: tables that are longer than their panels, gated biases, classes of
// pairs and masks by tiles, in groups of heads, with whatever else a random case draws; of few queries and
// of several blocks.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "testing/random_results.h"

namespace relpos {
namespace {

using namespace random_terms;  // NOLINT: this test's cases

ClassMap long_map(Rng& rng) {
  const int64_t past = one_of(rng, {300, 1000, 3000}), future = one_of(rng, {0, 300, 2000});
  return chance(rng, 0.5) ? ClassMap::clamp(-past, future, chance(rng, 0.5))
                          : ClassMap::zero_outside(-past, future, chance(rng, 0.5));
}

void add_long_bias(Rng& rng, Case& c) {
  const ClassMap map = long_map(rng);
  DistanceBias& bias = add_term(c.p.terms.biases, map, c.term(rng, {c.p.heads, map.classes()}));
  if (!chance(rng, 0.3)) return;  // columns of a table [classes, heads]
  c.storage.push_back(float_tensor(rng, {map.classes(), c.p.heads}));
  TensorView& view = bias.table.view = c.storage.back().view();
  std::swap(view.shape[0], view.shape[1]);
  std::swap(view.strides[0], view.strides[1]);
}

void add_gated_bias(Rng& rng, Case& c) {
  Problem& p = c.p;
  const ClassMap map = chance(rng, 0.5) ? long_map(rng) : random_map(rng);
  RowTable& rows = add_term(p.terms.row_tables, map, c.term(rng, table_shape(rng, p, map, 1)));
  rows.factor = c.term(rng, {p.batch, p.heads, p.queries, 1});
  if (chance(rng, 0.2)) rows.added = c.term(rng, {p.heads, 1});
}

Case combined_case(uint64_t seed, const Longer& longer) {
  Case c = random_case(seed, longer);
  Rng rng(seed + 1);
  if (chance(rng, 0.7)) add_long_bias(rng, c);
  if (chance(rng, 0.7)) add_gated_bias(rng, c);
  if (c.p.terms.pair_biases.empty() && c.p.terms.pair_rows.empty()) draw_pairs(rng, c);
  if (!c.p.visible.tiles.given()) draw_tiles(rng, c);
  return c;
}

constexpr Longer kKinds[] = {{1, 1}, {1, 12}, {2, 2, 2}};

TEST(Combined, EqualTheReferenceOnEveryTarget) {
  for (const Kernels& kernels : usable_kernels()) {
    for (const Longer& longer : kKinds) {
      SCOPED_TRACE(std::string(kernels.name) + ", keys " + std::to_string(longer.keys));
      const auto make = [&](uint64_t seed) { return combined_case(seed, longer); };
      for_cases(cases(2), make, on_fused_path, [&](Case& c, uint64_t seed) {
        c.p.kernels = &kernels;
        expect_the_reference(std::move(c), seed);
      });
    }
  }
}

TEST(Combined, EqualTheReferenceOnEveryUnit) {
  const auto make = [&](uint64_t seed) { return narrowed(combined_case(seed, {2, 2})); };
  for_cases(cases(5), make, on_fused_path, expect_the_reference_on_units, 100);
}

TEST(Combined, HaveTheBitsOfManyThreads) {
  for (const Longer& longer : kKinds) {
    const auto make = [&](uint64_t seed) { return combined_case(seed, longer); };
    for_cases(
        cases(4), make, on_fused_path,
        [](Case& c, uint64_t seed) {
          c.p.threads = 1;
          const Results one = run_fused(c);
          for (const int threads : {2, 5}) {
            c.p.threads = threads;
            expect_same(run_fused(c), one,
                        "seed " + std::to_string(seed) + ", threads " + std::to_string(threads));
          }
        },
        200);
  }
}

}  // namespace
}  // namespace relpos
