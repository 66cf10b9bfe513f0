// Row tables of rank 1, which are biases that each row reads times a number of its own: against the
// reference path, on every target and unit, among all other terms.
#include "kernels/terms/row_tables.h"

#include <gtest/gtest.h>

#include <cmath>
#include <utility>
#include <vector>

#include "testing/random_results.h"

namespace relpos {
namespace {

using namespace random_terms;  // NOLINT: this test's cases

ClassMap gated_map(Rng& rng) {
  const std::vector<ClassMap> wide = {ClassMap::clamp(-300, 300), ClassMap::clamp(-300, 300, true),
                                      ClassMap::zero_outside(-90, 0), ClassMap::clamp(400, 420)};
  return chance(rng, 0.5) ? random_map(rng) : wide[draw(rng, 0, std::ssize(wide) - 1)];
}

// The row tables of a random case become gated biases: some with numbers that are added to the gates, and
// more than are read in registers.
Case gated_case(uint64_t seed) {
  Case c = random_case(seed);
  Rng rng(seed);
  Problem& p = c.p;
  const std::vector<RowTable> before = std::exchange(p.terms.row_tables, {});
  for (int64_t n = one_of(rng, {1, 1, 2, 7}); n > 0; --n) {
    const ClassMap map = gated_map(rng);
    RowTable& term = add_term(p.terms.row_tables, map, c.term(rng, table_shape(rng, p, map, 1)));
    if (p.head_dim > 1 || chance(rng, 0.5)) {
      term.factor = c.term(rng, {p.batch, p.heads, p.queries, 1});
    }
    if (chance(rng, 0.2)) term.added = c.term(rng, {p.heads, 1});
    if (chance(rng, 0.5)) term.scale = 1.0;
    if (before.empty() || before[0].coordinates == nullptr) continue;
    term.coordinates = before[0].coordinates;
    term.axis = before[0].axis;
  }
  return c;
}

TEST(GatedBiases, EqualTheReferenceOnEveryTarget) {
  for (const Kernels& kernels : usable_kernels()) {
    SCOPED_TRACE(kernels.name);
    for_cases(cases(30), gated_case, on_fused_path, [&](Case& c, uint64_t seed) {
      c.p.kernels = &kernels;
      expect_the_reference(std::move(c), seed);
    });
  }
}

TEST(GatedBiases, EqualTheReferenceOnEveryUnit) {
  const auto narrow = [](uint64_t seed) { return narrowed(gated_case(seed)); };
  for_cases(cases(12), narrow, on_fused_path, expect_the_reference_on_units, 100);
}

TEST(GatedBiases, HaveTheBitsOfManyThreads) {
  for_cases(cases(20), gated_case, on_fused_path, [](Case& c, uint64_t seed) {
    c.p.threads = 1;
    const Results one = run_fused(c);
    c.p.threads = 3;
    expect_same(run_fused(c), one, "seed " + std::to_string(seed));
  });
}

// Queries that see their own key and those before it, and the last one nothing.
struct Gated : PlainCall {
  static constexpr int64_t kLength = 100;

  Gated() : PlainCall(5, kLength, kLength, 8, 1, 2, 2) {
    for (int64_t i = 0; i < kLength; ++i)
      p.visible.span.emplace_back(0, i + 1 < kLength ? i + 1 : 0);
    const ClassMap map = ClassMap::clamp(1 - kLength, kLength - 1);
    RowTable& term = add_term(p.terms.row_tables, map, trained({2, map.classes(), 1}));
    term.factor = trained({1, 2, kLength, 1});
  }
  bool gated() {
    Workspace memory;
    return Plan(p, true, memory).row_tables[0].is_gated();
  }
  // The gradient of the table of head 0, where query i of it has this factor.
  std::vector<double> gradient(int64_t i, double factor) {
    p.terms.row_tables[0].factor.view.store(i, factor);
    forward();
    backward();
    const std::vector<double>& all = terms.row_tables[0].table;
    return {all.begin(), all.begin() + 2 * kLength - 1};
  }
};

// As in a table of any rank, a factor of 0 takes what is not finite: that is left to the products.
TEST(GatedBiases, AreFinite) {
  Gated call;
  EXPECT_TRUE(call.gated());
  call.p.terms.row_tables[0].table.view.store(7, -INFINITY);
  EXPECT_FALSE(call.gated());
}

TEST(GatedBiases, AGateThatIsNotFiniteReachesWhatItsQuerySees) {
  Gated call;
  for (const int64_t i : {Gated::kLength - 1, int64_t{3}}) {
    const std::vector<double> want = call.gradient(i, 0.0);
    for (const double factor : {double{NAN}, double{INFINITY}}) {
      const std::vector<double> got = call.gradient(i, factor);
      for (int64_t n = 0; n < std::ssize(want); ++n) {
        const int64_t distance = n + 1 - Gated::kLength;
        const bool seen = i == 3 && distance >= -3 && distance <= 0;
        EXPECT_EQ(std::isfinite(got[n]), !seen) << i << ", " << distance;
        EXPECT_TRUE(seen || got[n] == want[n]) << i << ", " << distance;
      }
    }
    call.gradient(i, 1.0);
  }
}

}  // namespace
}  // namespace relpos
