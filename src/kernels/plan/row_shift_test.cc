// What rows of scores are made less by: src/kernels/shift.h.
#include "kernels/plan/row_shift.h"

#include <gtest/gtest.h>

#include "testing/random_terms.h"

namespace relpos {
namespace {

using random_terms::float_tensor;
using random_terms::Rng;

// Query i stands at `apart` * i, as key i does.
random_terms::PlainCall call(Rng& rng, int64_t length, int64_t apart, const Tensor& values) {
  random_terms::PlainCall call(rng, length, length, 8);
  KeyBias& term = call.p.terms.key_biases.emplace_back();
  term.values.view = values.view();
  term.values.multiplier = 2.0;
  call.p.positions.consecutive = false;
  call.p.positions.q.clear();
  for (int64_t i = 0; i < length; ++i) call.p.positions.q.push_back(apart * i);
  call.p.positions.k = call.p.positions.q;
  return call;
}

TEST(Shifts, OfKeyBiasesAreSharedByQueriesAtNeighbouringPositions) {
  constexpr int64_t kLength = 20;
  Rng rng(7);
  const Tensor values = float_tensor(rng, {1, kLength});
  const auto near = call(rng, kLength, 1, values), apart = call(rng, kLength, 6, values);
  const Shifts shared(near.p), own(apart.p);
  const auto bias = [&](int64_t key) { return 2.0 * values.view().load(key); };
  for (int64_t i = 0; i < kLength; ++i) {
    EXPECT_EQ(shared.of(0, 0, i).keys, bias(i / 6 * 6)) << i;
    EXPECT_EQ(own.of(0, 0, i).keys, bias(i)) << i;
  }
}

}  // namespace
}  // namespace relpos
