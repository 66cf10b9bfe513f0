#include "bench_trial.h"

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

namespace relpos::cli {
namespace {

TEST(BenchTrial, CountsFlops) {
  TrialShape shape = TrialShape::square(100);
  shape.heads = shape.key_heads = 2;
  shape.dim = 16;
  EXPECT_EQ(Trial(shape, "", 1).flops(false), 4.0 * 2 * 100 * 100 * 16);
  shape.causal = true;
  EXPECT_EQ(Trial(shape, "", 1).flops(true), 10.0 * 2 * 100 * 100 * 16 / 2);
}

TEST(BenchTrial, TakesTurnsInBothOrders) {
  std::vector<int> order;
  const auto call = [&](int n) {
    return [&order, n] {
      const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(2);
      while (std::chrono::steady_clock::now() < end) continue;
      order.push_back(n);
    };
  };
  const auto seconds = take_turns({call(0), call(1)}, {.seconds = 0.001, .rounds = 2});
  ASSERT_EQ(seconds.size(), 2U);
  EXPECT_EQ(seconds[0].size(), 2U);
  EXPECT_EQ(order, (std::vector<int>{0, 1, 0, 1, 1, 0}));
  for (const std::vector<double>& one : seconds) {
    for (const double s : one) EXPECT_GE(s, 0.002);
  }
}

TEST(BenchTrial, Quantiles) {
  EXPECT_EQ(quantile({3, 1, 2}, 0.5), 2);
  EXPECT_EQ(quantile({1, 2}, 0.25), 1.25);
  EXPECT_EQ(quantile({7}, 0.75), 7);
}

}  // namespace
}  // namespace relpos::cli
