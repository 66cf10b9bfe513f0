#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "testing/schemes.h"

namespace relpos {
namespace {

using plain::error_of;
using plain::Made;

TEST(ALiBi, BiasAndGradientAreThePapers) {
  const int64_t heads = 5;
  const Grid grid{6, 11, 3};
  for (const bool symmetric : {true, false}) {
    const Made alibi("alibi", {{"heads", heads}, {"symmetric", symmetric}, {"learned", true}});
    const Terms terms = alibi.lower(heads);
    std::vector<double> expected(heads, 0.0);
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < grid.queries; ++i) {
        for (int64_t j = 0; j < grid.keys; ++j) {
          const int64_t query = grid.q_offset + i;
          const auto penalty =
              static_cast<double>(j > query && !symmetric ? 0 : std::abs(query - j));
          ASSERT_DOUBLE_EQ(plain::bias(terms.biases[0], h, j - query),
                           -alibi.parameters()[0].at({h}) * penalty);
          expected[static_cast<size_t>(h)] -= plain::weight(h, i, j) * penalty;
        }
      }
    }
    const auto sums = alibi.pull_back(plain::weighted_gradients(terms, heads, grid));
    for (size_t h = 0; h < expected.size(); ++h) EXPECT_NEAR(sums[0][h], expected[h], 1e-12);
  }
}

TEST(ALiBi, SlopesOfTheOptions) {
  const auto slopes = [](const OptionValue& rule, int64_t heads) {
    return Made("alibi", {{"heads", heads}, {"slopes", rule}}).specs()[0].init.values;
  };
  const std::vector<double> paper = {0.0625, 0.00390625, 0.25};
  EXPECT_EQ(slopes("paper", 3), paper);
  EXPECT_DOUBLE_EQ(slopes("geometric", 3)[0], std::exp2(-8.0 / 3));
  const std::vector<double> given = {0.3, 0.0, -1.0};
  EXPECT_EQ(slopes(given, 3), given);
}

TEST(ALiBi, SlopesTrainOnlyWhereLearned) {
  EXPECT_FALSE(Made("alibi", {{"heads", int64_t{2}}}).specs()[0].trainable);
  EXPECT_TRUE(Made("alibi", {{"heads", int64_t{2}}, {"learned", true}}).specs()[0].trainable);
}

TEST(ALiBi, Refuses) {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  const std::vector<double> short_list = {1.0}, with_nan = {1.0, nan};
  const auto made = [](const std::vector<double>& slopes) {
    return error_of([&] { Made("alibi", {{"heads", int64_t{2}}, {"slopes", slopes}}); });
  };
  EXPECT_NE(made(short_list).find("slopes: expected one number for each of heads=2, got 1"),
            std::string::npos);
  EXPECT_NE(made(with_nan).find("slopes: expected finite numbers, got nan"), std::string::npos);
  const Made alibi("alibi", {{"heads", int64_t{2}}});
  EXPECT_EQ(error_of([&] { alibi.lower(2); }), "");
  EXPECT_NE(error_of([&] { alibi.lower(3); }).find("heads"), std::string::npos);
  alibi.parameters()[0].store(1, inf);
  EXPECT_NE(
      error_of([&] { alibi.lower(2); }).find("slopes: expected finite numbers, got inf for head 1"),
      std::string::npos);
}

}  // namespace
}  // namespace relpos
