// What rows of scores are made less by: src/kernels/plan/row_shift.h.
#include "kernels/plan/row_shift.h"

#include <gtest/gtest.h>

#include "testing/random_terms.h"

namespace relpos {
namespace {

constexpr int64_t kLength = 20;

// Query i stands at `apart` * i, as key i does.
struct SpacedCall : random_terms::PlainCall {
  explicit SpacedCall(int64_t apart) : PlainCall(7, kLength, kLength, 8) {
    p.terms.key_biases = {{trained({1, kLength})}};
    p.terms.key_biases[0].values.multiplier = 2.0;
    p.positions.consecutive = false;
    p.positions.q.clear();
    for (int64_t i = 0; i < kLength; ++i) p.positions.q.push_back(apart * i);
    p.positions.k = p.positions.q;
  }
};

TEST(Shifts, OfKeyBiasesAreSharedByQueriesAtNeighbouringPositions) {
  const SpacedCall near(1), apart(6);
  const Shifts shared(near.p), own(apart.p);
  const TensorView& values = near.p.terms.key_biases[0].values.view;
  const auto bias = [&](int64_t key) { return 2.0 * values.load(key); };
  for (int64_t i = 0; i < kLength; ++i) {
    EXPECT_EQ(shared.of(0, 0, i).keys, bias(i / 6 * 6)) << i;
    EXPECT_EQ(own.of(0, 0, i).keys, bias(i)) << i;
  }
}

// One query at 10 between two keys, at `before` and `after`, with slopes 8 and 16.
RowShift between(int64_t before, int64_t after) {
  random_terms::PlainCall call(3, 1, 2, 8);
  DistanceBias term;
  term.slopes = TermData::computed({8.0, 16.0}, {2, 1}, false);
  call.p.terms.biases.push_back(std::move(term));
  call.p.positions.consecutive = false;
  call.p.positions.q = {10};
  call.p.positions.k = {before, after};
  return Shifts(call.p).of(0, 0, 0);
}

TEST(Shifts, OfSlopesAreThoseOfTheNearestKey) {
  EXPECT_EQ(between(7, 15).distance, -3);
  EXPECT_EQ(between(7, 15).slopes, -24.0);
  EXPECT_EQ(between(4, 12).distance, 2);
  EXPECT_EQ(between(4, 12).slopes, 32.0);
  EXPECT_EQ(between(7, 13).distance, 3);
}

}  // namespace
}  // namespace relpos
