#include "schemes/common/frequencies.h"

#include <gtest/gtest.h>

#include <cmath>

namespace relpos {
namespace {

// The golden numbers have nine digits.
void expect_theta(double theta, double golden) { EXPECT_NEAR(theta, golden, 2e-7 * golden); }

TEST(Frequencies, Head128) {
  for (const auto& theta :
       {common::rotary_frequencies(128, 1e4), common::rotary_frequencies_float32(128, 1e4)}) {
    ASSERT_EQ(theta.size(), 64U);
    EXPECT_EQ(theta[0], 1.0);
    expect_theta(theta[1], 0.865964353);
    expect_theta(theta[2], 0.749894202);
    expect_theta(theta[32], 0.00999999978);
    expect_theta(theta[63], 0.000115478193);
  }
  const auto long_base = common::rotary_frequencies(128, 5e5);
  expect_theta(long_base[1], 0.814617217);
  expect_theta(long_base[32], 0.00141421345);
  expect_theta(long_base[63], 2.4551407e-06);
}

TEST(Frequencies, DoubleIsExactToTheLastDigits) {
  const auto theta = common::rotary_frequencies(8, 1e4);
  for (size_t p = 0; p < 4; ++p) {
    EXPECT_NEAR(theta[p], std::pow(10.0, -static_cast<double>(p)), 1e-15);
  }
}

// 1 / 10000^(p / 4) in float32: 0.1 and its powers as float32 has them.
TEST(Frequencies, Float32RoundsEachStep) {
  const auto theta = common::rotary_frequencies_float32(8, 1e4);
  EXPECT_EQ(theta, (std::vector<double>{1.0F, 0.1F, 0.01F, 0.001F}));
  EXPECT_NE(theta[1], 0.1);
}

}  // namespace
}  // namespace relpos
