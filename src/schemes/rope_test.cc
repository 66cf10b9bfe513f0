#include <gtest/gtest.h>

#include <cmath>

#include "testing/schemes.h"

namespace relpos {
namespace {

using plain::error_of;
using plain::Made;

std::vector<std::pair<std::string, OptionValue>> options(int64_t head_dim, const char* layout) {
  return {{"head_dim", head_dim}, {"layout", layout}};
}

// y = R(position) x as terms.h states it.
std::vector<double> turned(const Rotation& turn, std::vector<double> x, int64_t position) {
  const bool half = turn.layout == PairLayout::kHalf;
  const int64_t pairs = turn.dims / 2;
  for (int64_t p = 0; p < pairs; ++p) {
    const auto first = static_cast<size_t>(turn.start + (half ? p : 2 * p));
    const size_t second = first + static_cast<size_t>(half ? pairs : 1);
    const double angle = static_cast<double>(position) * turn.frequency[static_cast<size_t>(p)];
    const double a = x[first], b = x[second];
    x[first] = a * std::cos(angle) - b * std::sin(angle);
    x[second] = b * std::cos(angle) + a * std::sin(angle);
  }
  return x;
}

void expect_near(const std::vector<double>& x, const std::vector<double>& golden) {
  ASSERT_EQ(x.size(), golden.size());
  for (size_t c = 0; c < x.size(); ++c) EXPECT_NEAR(x[c], golden[c], 6e-7) << c;
}

TEST(RoPE, VectorOfEightAtPositionThree) {
  const std::vector<double> x = {1, 2, 3, 4, 5, 6, 7, 8};
  expect_near(turned(Made("rope", options(8, "interleaved")).lower(0, 8).rotations[0], x, 3),
              {-1.272233, -1.838865, 1.683929, 4.707907, 4.817777, 6.147278, 6.975969, 8.020964});
  expect_near(turned(Made("rope", options(8, "half")).lower(0, 8).rotations[0], x, 3),
              {-1.695593, 0.137552, 2.788682, 3.975982, -4.808842, 6.323059, 7.086837, 8.011964});
}

TEST(RoPE, PartialTurnsTheFirstDimensions) {
  auto given = options(8, "half");
  given.emplace_back("rotary_dim", int64_t{4});
  const Rotation turn = Made("rope", given).lower(0, 8).rotations[0];
  EXPECT_EQ(turn.start, 0);
  EXPECT_EQ(turn.dims, 4);
  ASSERT_EQ(turn.frequency.size(), 2U);
  EXPECT_DOUBLE_EQ(turn.frequency[1], 0.01);
  const std::vector<double> y = turned(turn, {1, 2, 3, 4, 5, 6, 7, 8}, 3);
  EXPECT_EQ(std::vector<double>(y.begin() + 4, y.end()), (std::vector<double>{5, 6, 7, 8}));
  given = options(7, "half");
  given.emplace_back("rotary_dim", int64_t{6});
  EXPECT_EQ(Made("rope", given).lower(0, 7).rotations[0].dims, 6);
}

TEST(RoPE, Float32Frequencies) {
  auto given = options(128, "half");
  given.emplace_back("angle", "float32");
  const Rotation turn = Made("rope", given).lower(0, 128).rotations[0];
  EXPECT_TRUE(turn.float32_angles);
  EXPECT_EQ(turn.frequency[32], static_cast<double>(0.01F));
  const Rotation exact = Made("rope", options(128, "half")).lower(0, 128).rotations[0];
  EXPECT_FALSE(exact.float32_angles);
  EXPECT_DOUBLE_EQ(exact.frequency[32], 0.01);
}

TEST(RoPE, HasNoParameters) { EXPECT_TRUE(Made("rope", options(8, "half")).specs().empty()); }

TEST(RoPE, Refuses) {
  const auto made = [](int64_t head_dim, const char* name, const OptionValue& value) {
    auto given = options(head_dim, "half");
    if (name != nullptr) given.emplace_back(name, value);
    return error_of([&] { Made("rope", given); });
  };
  EXPECT_NE(error_of([] { Made("rope", {{"head_dim", int64_t{8}}}); }).find("layout"),
            std::string::npos);
  EXPECT_NE(made(7, nullptr, {}).find("head_dim: expected an even number, got 7"),
            std::string::npos);
  EXPECT_NE(made(8, "rotary_dim", int64_t{3}).find("rotary_dim"), std::string::npos);
  EXPECT_NE(made(8, "rotary_dim", int64_t{10}).find("rotary_dim"), std::string::npos);
  EXPECT_NE(made(8, "base", 0.0).find("base"), std::string::npos);
  EXPECT_NE(made(8, "base", std::nan("")).find("base"), std::string::npos);
  const Made rope("rope", options(8, "half"));
  EXPECT_NE(error_of([&] { rope.lower(2, 16); }).find("head_dim=8, the call has 16"),
            std::string::npos);
  EXPECT_EQ(error_of([&] { rope.lower(2, 8); }), "");
}

}  // namespace
}  // namespace relpos
