#include "bench_trial.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>
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

// A call that takes 6 ms and says that it ran.
std::function<void()> call_into(std::vector<int>& order, int n) {
  return [&order, n] {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(6);
    while (std::chrono::steady_clock::now() < end) continue;
    order.push_back(n);
  };
}

TEST(BenchTrial, TakesTurnsInBothOrders) {
  std::vector<int> order;
  const auto seconds =
      take_turns({call_into(order, 0), call_into(order, 1)}, {.seconds = 0.001, .rounds = 2})
          .seconds;
  ASSERT_EQ(seconds.size(), 2U);
  EXPECT_EQ(seconds[0].size(), 2U);
  EXPECT_EQ(order, (std::vector<int>{0, 0, 1, 1, 0, 1, 1, 0}));
  for (const std::vector<double>& one : seconds) {
    for (const double s : one) EXPECT_GE(s, 0.006);
  }
}

// Looks that a test has written down; after them the last one again.
class Script : public IssueSlots {
 public:
  explicit Script(std::vector<double> looks) : IssueSlots(1, 10), looks_(std::move(looks)) {}

 protected:
  double rate() override { return looks_[std::min(next_++, looks_.size() - 1)]; }

 private:
  std::vector<double> looks_;
  size_t next_ = 0;
};

TEST(BenchTrial, RoundsBesideNeighboursDoNotCount) {
  std::vector<int> order;
  // The first turn's look; then of each round one before, again until it is quiet, one between the
  // calls and one after.
  Script some({5, 9, 5, 9, 6, 9, 9, 9, 9, 10, 9});
  Budget budget{.seconds = 0.001, .rounds = 2, .slots = &some, .patience = 60};
  Turns turns = take_turns({call_into(order, 0), call_into(order, 1)}, budget);
  EXPECT_EQ(turns.looks, (std::vector<double>{5, 9, 9}));
  // Four uncounted calls, a round beside neighbours, a quiet one in the same order, one in the other.
  EXPECT_EQ(order, (std::vector<int>{0, 0, 1, 1, 0, 1, 0, 1, 1, 0}));
  EXPECT_EQ(counted({1, 2, 3}, turns.looks, &some).values, (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(counted({1, 2, 3, 4}, {5, 9, 9, 10}, &some).values, (std::vector<double>{2, 3, 4}));

  // Without patience, rounds that were not quiet before do not count either.
  Script none({5, 5, 10, 5, 10, 5, 10});
  budget.slots = &none;
  budget.patience = 0;
  budget.rounds = 0;
  turns = take_turns({call_into(order, 0)}, budget);
  EXPECT_EQ(turns.looks, (std::vector<double>{5, 5, 5}));
  const Counted all = counted(turns.seconds[0], turns.looks, &none);
  EXPECT_TRUE(all.noisy);
  EXPECT_EQ(all.values, turns.seconds[0]);
}

TEST(BenchTrial, Quantiles) {
  EXPECT_EQ(quantile({3, 1, 2}, 0.5), 2);
  EXPECT_EQ(quantile({1, 2}, 0.25), 1.25);
  EXPECT_EQ(quantile({7}, 0.75), 7);
}

}  // namespace
}  // namespace relpos::cli
