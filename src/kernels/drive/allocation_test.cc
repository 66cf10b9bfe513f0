// Nothing is allocated inside the loops over tiles: a longer call makes as many allocations as a short
// one, and the tile kernels make none.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "base/buffer.h"
#include "base/sanitized.h"
#include "kernels/drive/forward_block.h"
#include "testing/allocations.h"
#include "testing/random_results.h"
#include "testing/random_terms.h"

namespace relpos {
namespace {

using random_terms::add_term;

// Allocations, and blocks that took the place of one.
int64_t so_far() { return allocations::made() + detail::blocks_reused(); }

enum class Kind { kPlain, kEveryTerm, kEveryTermAnywhere };

// Causal attention; with every kind of term that tiles read and dropout, at consecutive positions or
// at others.
struct CountedCall : random_terms::PlainCall {
  static constexpr int64_t kHeads = 2, kDim = 32, kReach = 4, kClasses = 2 * kReach + 1;

  CountedCall(Kind kind, int64_t length) : PlainCall(3, length, length, kDim, 1, kHeads, kHeads) {
    p.scale = 0.3;
    p.threads = 1;
    for (int64_t i = 0; i < length; ++i) p.visible.span.emplace_back(0, i + 1);
    p.positions.consecutive = kind != Kind::kEveryTermAnywhere;
    p.positions.q.clear();
    p.positions.k.clear();
    for (int64_t i = 0; i < (p.positions.consecutive ? 1 : length); ++i) {
      p.positions.q.push_back(i % 700);
      p.positions.k.push_back(i % 900);
    }
    if (kind != Kind::kPlain) add_terms();
  }

  void add_terms() {
    const ClassMap map = ClassMap::clamp(-kReach, kReach);
    Rotation rotation;
    rotation.dims = kDim / 2;
    rotation.by_position().frequency.assign(kDim / 4, 0.01);
    p.terms.rotations = {rotation, rotation};
    Rotation& own = p.terms.rotations[1];
    own.start = kDim / 2;
    Coordinates at;
    at.axes = 1;
    at.queries = at.keys = p.keys;
    for (int64_t i = 0; i < p.keys; ++i) at.q.push_back(i);
    at.k = at.q;
    own.angles =
        Rotation::ByHead{trained({1, kHeads, kDim / 4}), std::make_shared<const Coordinates>(at)};
    add_term(p.terms.biases, map, trained({kHeads, kClasses}));
    p.terms.biases.emplace_back().slopes = trained({2, kHeads});
    add_term(p.terms.row_tables, map, trained({kClasses, kDim}));
    add_term(p.terms.column_tables, map, trained({kClasses, kDim}));
    p.terms.key_biases = {{trained({kHeads, p.keys})}};
    add_term(p.terms.value_tables, map, trained({kClasses, kDim}));
    p.terms.query_added = {trained({kHeads, kDim})};
    p.dropout = Dropout(0.2, 5);
  }

  int64_t of_forward() {
    const int64_t before = so_far();
    forward();
    return so_far() - before;
  }
  int64_t of_backward() {
    const ProblemGradients to = gradients();
    const int64_t before = so_far();
    fused_backward(p, out.view(), lse.view(), dout.view(), {}, to);
    return so_far() - before;
  }
};

// Lengths that differ in blocks and tiles alone: 22 x 32 and 43 x 64, in as many chunks.
constexpr int64_t kShort = 2048, kLong = 4096;

constexpr Kind kKinds[] = {Kind::kPlain, Kind::kEveryTerm, Kind::kEveryTermAnywhere};

TEST(Allocations, OfACallDoNotGrowWithItsLength) {
  const bool few_kinds = random_terms::few_cases();
  if (few_kinds && kSanitized) GTEST_SKIP() << "a call allocates the same without a sanitizer";
  for (const Kind kind : kKinds) {
    if (few_kinds && kind == Kind::kEveryTerm) continue;
    SCOPED_TRACE(static_cast<int>(kind));
    CountedCall first(kind, kShort);  // a process's first allocates what stays
    first.of_forward();
    first.of_backward();
    CountedCall few(kind, kShort), many(kind, kLong);
    const int64_t forward = few.of_forward(), backward = few.of_backward();
    EXPECT_GT(forward, 0) << "the test counts nothing";
    EXPECT_EQ(many.of_forward(), forward);
    EXPECT_EQ(many.of_backward(), backward);
  }
}

// Allocations of one block over its tiles, once its lists have grown.
int64_t of_block(const CountedCall& call, const Kernels& kernels) {
  Workspace memory;
  const Plan plan(call.p, false, memory, false, kernels);
  ForwardBlock x(plan, memory);
  TileCache cache(plan, 1, 1, memory);
  Stopper stopper(nullptr);
  int64_t counted = 0;
  for (int turn = 0; turn < 2; ++turn) {
    const int64_t before = so_far();
    cache.start(0);
    x.begin(0);
    x.add_rows(0, 900, 960);
    x.start();
    const auto [first, end] = x.tile_range();
    x.run([&, first = first, end = end] {
      cache.read(0, 0, first, end, stopper, 0,
                 [&](const KeyTile* tiles, int64_t t, int64_t n) { x.forward(tiles, t, n); });
    });
    counted = so_far() - before;
  }
  return counted;
}

TEST(Allocations, ABlockMakesNoneOnAnyTarget) {
  for (const Kernels& kernels : usable_kernels()) {
    for (const Kind kind : kKinds) {
      EXPECT_EQ(of_block(CountedCall(kind, kShort), kernels), 0)
          << kernels.name << ", " << static_cast<int>(kind);
    }
  }
}

}  // namespace
}  // namespace relpos
