#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "schemes/common/testing.h"

namespace relpos {
namespace {

using plain::error_of;
using plain::Made;

constexpr int64_t kHeads = 3;
constexpr double kMinusInf = -std::numeric_limits<double>::infinity();

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
  EXPECT_FALSE(t5.lower(kHeads, {false}).biases[0].table.wants_gradient);
}

TEST(T5, LastRowsOfTheNotebooksMatrices) {
  const Made t5("t5", {{"heads", int64_t{4}},
                       {"buckets", int64_t{6}},
                       {"max_distance", int64_t{20}},
                       {"bidirectional", false}});
  const Grid grid{15, 15, 0};
  const auto row = [&](const char* name, int64_t i) {
    const Step step = t5.step(grid, name);
    const auto from = step.values.begin() + i * grid.keys;
    return std::vector<double>(from, from + grid.keys);
  };
  std::vector<std::string> names;
  for (const Step& step : t5.steps(grid)) names.push_back(step.name);
  EXPECT_EQ(names, (std::vector<std::string>{
                       "q_pos", "k_pos", "rel_pos", "n", "max(n, 0)", "is_small", "val_if_large",
                       "val_if_large.long()", "min(val_if_large, num_buckets - 1)",
                       "position_bucket_indices", "relative_position_values"}));
  EXPECT_EQ(row("rel_pos", 0),
            (std::vector<double>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14}));
  EXPECT_EQ(row("n", 1),
            (std::vector<double>{1, 0, -1, -2, -3, -4, -5, -6, -7, -8, -9, -10, -11, -12, -13}));
  EXPECT_EQ(row("max(n, 0)", 2),
            (std::vector<double>{2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(row("is_small", 3), (std::vector<double>{0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}));
  const std::vector<double> printed = {5.4360, 5.3188, 5.1922, 5.0546, 4.9039,
                                       4.7373, 4.5510, 4.3399, 4.0961, 3.8078,
                                       3.4549, 3.0000, 2.3588, 1.2627, kMinusInf};
  const std::vector<double> large = row("val_if_large", 14);
  for (size_t j = 0; j + 1 < printed.size(); ++j) EXPECT_NEAR(large[j], printed[j], 5.1e-5) << j;
  EXPECT_EQ(large.back(), kMinusInf);
  EXPECT_EQ(row("val_if_large.long()", 14), (std::vector<double>{5, 5, 5, 5, 4, 4, 4, 4, 4, 3, 3, 3,
                                                                 2, 1, -9223372036854775808.0}));
  EXPECT_EQ(row("position_bucket_indices", 14),
            (std::vector<double>{5, 5, 5, 5, 4, 4, 4, 4, 4, 3, 3, 3, 2, 1, 0}));
  const Step values = t5.step(grid, "relative_position_values");
  EXPECT_EQ(values.shape, (std::vector<int64_t>{4, 15, 15}));
  // Orientation [head, query, key]: query 14, key 0 holds bucket 5, query 0, key 14 bucket 0.
  EXPECT_EQ(values.values[static_cast<size_t>((2 * 15 + 14) * 15)], t5.parameters()[0].at({5, 2}));
  EXPECT_EQ(values.values[static_cast<size_t>(2 * 15 * 15 + 14)], t5.parameters()[0].at({0, 2}));
}

// The notebook's where(is_small, n, min(val_if_large, num_buckets - 1)), and with two sides its
// predecessor's offset, from the steps themselves.
TEST(T5, StepsLeadToTheIndices) {
  for (const bool two_sided : {false, true}) {
    for (const auto& [buckets, far] :
         {std::pair<int64_t, int64_t>{8, 17}, {2, 5}, {6, 20}, {32, 128}}) {
      const Made t5("t5", {{"heads", int64_t{1}},
                           {"buckets", buckets},
                           {"max_distance", far},
                           {"bidirectional", two_sided}});
      const Grid grid{9, 150, 100};
      const Step n = t5.step(grid, two_sided ? "abs(n)" : "max(n, 0)");
      const Step small = t5.step(grid, "is_small");
      const Step large = t5.step(grid, "min(val_if_large, num_buckets - 1)");
      const Step index = t5.step(grid, "position_bucket_indices");
      const Step ahead = two_sided ? t5.step(grid, "(n < 0) * num_buckets")
                                   : Step{"", {}, {}, std::vector<double>(index.values.size())};
      for (size_t p = 0; p < index.values.size(); ++p) {
        EXPECT_EQ(index.values[p],
                  ahead.values[p] + (small.values[p] != 0 ? n.values[p] : large.values[p]));
      }
    }
  }
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
