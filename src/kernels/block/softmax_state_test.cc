// The two numbers that a row's softmax leaves: src/kernels/block/softmax_state.h.
#include "kernels/block/softmax_state.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace relpos {
namespace {

TEST(SoftmaxState, HasAnIntegerReferenceAndASumFromOneToTwo) {
  for (const double reference :
       {-3000000.25, -17.75, -0.5, 0.0, 3.5, 129.125, 4194303.5, double{1e30F}}) {
    for (const double sum : {1.0, 1.5, 3.999, 700.0, 1e9, 1e-3}) {
      SCOPED_TRACE(testing::Message() << reference << " " << sum);
      const SoftmaxState state = SoftmaxState::of(reference, sum);
      EXPECT_EQ(state.reference, std::floor(state.reference));
      EXPECT_EQ(static_cast<double>(static_cast<float>(state.reference)), state.reference);
      if (std::fabs(reference) < 1 << 22) {
        EXPECT_GE(state.sum, 1.0);
        EXPECT_LT(state.sum, 2.0);
      }
      const double lse = std::log(2.0) * (reference + std::log2(sum));
      EXPECT_NEAR(state.lse(0.0), lse, 1e-12 * std::max(1.0, std::fabs(lse)));
      EXPECT_EQ(state.lse(2.0), state.lse(0.0) + 2.0);
    }
  }
}

TEST(SoftmaxState, OfARowThatSeesNothingDividesByOne) {
  for (const double reference : {-HUGE_VAL, 0.0, 5.0}) {
    const SoftmaxState state = SoftmaxState::of(reference, 0.0);
    EXPECT_EQ(state.reference, -HUGE_VAL);
    EXPECT_EQ(state.sum, 1.0);
    EXPECT_EQ(state.lse(3.0), -HUGE_VAL);
  }
}

TEST(SoftmaxState, KeepsNaN) {
  const SoftmaxState state = SoftmaxState::of(1.0, std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(std::isnan(state.reference));
  EXPECT_TRUE(std::isnan(state.sum));
}

}  // namespace
}  // namespace relpos
