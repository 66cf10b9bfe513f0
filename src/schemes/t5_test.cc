#include <gtest/gtest.h>

#include <cmath>

#include "testing/schemes.h"

namespace relpos {
namespace {

using plain::error_of;
using plain::Made;

constexpr int64_t kHeads = 3;

// The paper's published code, with the whole part that real arithmetic would give.
int64_t paper_bucket(int64_t relative_position, bool bidirectional, int64_t num_buckets,
                     int64_t max_distance) {
  int64_t bucket = 0;
  int64_t n = -relative_position;
  if (bidirectional) {
    num_buckets /= 2;
    if (n < 0) bucket += num_buckets;
    n = std::abs(n);
  } else {
    n = std::max<int64_t>(n, 0);
  }
  const int64_t max_exact = num_buckets / 2;
  if (n < max_exact) return bucket + n;
  const double large =
      std::log(static_cast<double>(n) / static_cast<double>(max_exact)) /
      std::log(static_cast<double>(max_distance) / static_cast<double>(max_exact)) *
      static_cast<double>(num_buckets - max_exact);
  return bucket + std::min(num_buckets - 1, max_exact + static_cast<int64_t>(large + 1e-9));
}

struct Case {
  int64_t buckets, max_distance;
  bool bidirectional;
  double scale;
};

class T5 : public ::testing::TestWithParam<Case> {};

TEST_P(T5, BiasAndGradientAreThePapers) {
  const Case& c = GetParam();
  const Made t5("t5", {{"heads", kHeads},
                       {"buckets", c.buckets},
                       {"max_distance", c.max_distance},
                       {"bidirectional", c.bidirectional},
                       {"scale", c.scale}});
  const Grid grid{40, 300, 200};
  const Terms terms = t5.lower(kHeads);
  ASSERT_EQ(terms.biases.size(), 1U);
  const TensorView& weight = t5.parameters()[0];
  std::vector<double> expected(static_cast<size_t>(weight.numel()), 0.0);
  double largest = 0;
  for (int64_t h = 0; h < kHeads; ++h) {
    for (int64_t i = 0; i < grid.queries; ++i) {
      for (int64_t j = 0; j < grid.keys; ++j) {
        const int64_t delta = j - i - grid.q_offset;
        const int64_t m = paper_bucket(delta, c.bidirectional, c.buckets, c.max_distance);
        ASSERT_EQ(plain::bias(terms.biases[0], h, delta), c.scale * weight.at({m, h})) << delta;
        expected[static_cast<size_t>(m * kHeads + h)] += c.scale * plain::weight(h, i, j);
      }
    }
  }
  for (double x : expected) largest = std::max(largest, std::abs(x));
  const auto sums = t5.pull_back(plain::weighted_gradients(terms, kHeads, grid));
  for (size_t n = 0; n < expected.size(); ++n) {
    EXPECT_NEAR(sums[0][n], expected[n], 1e-12 * largest) << n;
  }
}

INSTANTIATE_TEST_SUITE_P(Configurations, T5,
                         ::testing::Values(Case{32, 128, true, 1.0}, Case{32, 128, false, 1.0},
                                           Case{6, 20, false, 0.25}, Case{6, 20, true, -3.0},
                                           Case{64, 256, true, 1.0}, Case{8, 17, false, 1.0},
                                           Case{512, 2048, true, 1.0}));

// Half of the buckets lie ahead, where no distance is 0: row 16 of 32 has no pair, so no gradient.
TEST(T5, FirstBucketAheadIsNeverUsed) {
  const Made t5("t5", {{"heads", int64_t{1}}});
  const Terms terms = t5.lower(1);
  const auto sums = t5.pull_back(plain::weighted_gradients(terms, 1, {300, 300, 0}));
  for (size_t m = 0; m < 32; ++m) EXPECT_EQ(sums[0][m] == 0.0, m == 16) << m;
}

TEST(T5, FrozenTableAsksForNoWork) {
  const Made t5("t5", {{"heads", kHeads}});
  EXPECT_FALSE(t5.lower(kHeads, std::vector<bool>{false}).biases[0].table.wants_gradient);
}

TEST(T5, Refuses) {
  EXPECT_NE(error_of([] { Made("t5", {{"heads", int64_t{0}}}); }).find("heads: expected 1"),
            std::string::npos);
  EXPECT_NE(
      error_of([] { Made("t5", {{"heads", kHeads}, {"buckets", int64_t{31}}}); }).find("buckets"),
      std::string::npos);
  EXPECT_NE(
      error_of([] { Made("t5", {{"heads", kHeads}, {"scale", std::nan("")}}); }).find("scale"),
      std::string::npos);
  EXPECT_NE(error_of([] { Made("t5", {{"heads", int64_t{1} << 62}}); }).find("heads"),
            std::string::npos);
  const Made t5("t5", {{"heads", kHeads}});
  EXPECT_NE(error_of([&] { t5.lower(4); }).find("heads=3, the call has 4"), std::string::npos);
}

}  // namespace
}  // namespace relpos
