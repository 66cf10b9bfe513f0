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
      const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(6);
      while (std::chrono::steady_clock::now() < end) continue;
      order.push_back(n);
    };
  };
  const auto seconds = take_turns({call(0), call(1)}, {.seconds = 0.001, .rounds = 2}).seconds;
  ASSERT_EQ(seconds.size(), 2U);
  EXPECT_EQ(seconds[0].size(), 2U);
  EXPECT_EQ(order, (std::vector<int>{0, 0, 1, 1, 0, 1, 1, 0}));
  for (const std::vector<double>& one : seconds) {
    for (const double s : one) EXPECT_GE(s, 0.006);
  }
}

TEST(BenchTrial, RoundsBesideNeighboursDoNotCount) {
  // Each round takes the answer of its start and that of its end.
  const auto turns_of = [](std::vector<bool> answers, double patience) {
    size_t next = 0;
    Budget budget{.seconds = 0.001, .rounds = 2, .quiet = {}, .patience = patience};
    budget.quiet = [&] { return next < answers.size() ? answers[next++] : answers.back(); };
    int calls = 0;
    const auto call = [&calls] {
      const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(6);
      while (std::chrono::steady_clock::now() < end) continue;
      ++calls;
    };
    const Turns turns = take_turns({call}, budget);
    return std::pair{turns, calls};
  };
  const auto [quiet, calls] = turns_of({true, false, true, true, false, true, true}, 60);
  EXPECT_FALSE(quiet.noisy);
  EXPECT_EQ(quiet.seconds[0].size(), 2U);
  EXPECT_EQ(calls, 5);  // two uncounted turns, one beside neighbours, two quiet ones
  const auto [noisy, more] = turns_of({false}, 0.05);
  EXPECT_TRUE(noisy.noisy);
  EXPECT_EQ(static_cast<int>(noisy.seconds[0].size()), more - 2);
  EXPECT_GE(noisy.seconds[0].size(), 2U);
}

TEST(BenchTrial, Quantiles) {
  EXPECT_EQ(quantile({3, 1, 2}, 0.5), 2);
  EXPECT_EQ(quantile({1, 2}, 0.25), 1.25);
  EXPECT_EQ(quantile({7}, 0.75), 7);
}

}  // namespace
}  // namespace relpos::cli
