#include <gtest/gtest.h>

#include "testing/schemes.h"

namespace relpos {
namespace {

using plain::error_of;
using Given = OptionValues;

Rotation made(int64_t head_dim, Given own) {
  own.emplace_back("head_dim", head_dim);
  own.emplace_back("layout", "half");
  return plain::Made("rope_yarn", own).lower(0, head_dim).rotations.at(0);
}

TEST(Yarn, OfLlama2At64k) {
  const Rotation turn = made(128, {{"factor", 16.0}});
  EXPECT_NEAR(turn.magnitude, 1.2772588722, 1e-10);
  const std::pair<size_t, double> golden[] = {
      {20, .0562341}, {21, .0469409}, {30, .00852684}, {45, 1.5177e-4}, {63, 7.21739e-6}};
  for (const auto& [pair, w] : golden) EXPECT_NEAR(turn.frequency[pair], w, 4e-5 * w) << pair;
}

TEST(Yarn, OfGptOss) {
  const Rotation turn = made(64, {{"factor", 32.0}, {"base", 150000.0}, {"truncate", false}});
  EXPECT_NEAR(turn.magnitude, 1.3465735903, 1e-10);
  const std::pair<size_t, double> golden[] = {
      {8, .05081327}, {9, .03170570}, {12, .00679496}, {17, 1.29319e-4}};
  for (const auto& [pair, w] : golden) EXPECT_NEAR(turn.frequency[pair], w, 1e-5 * w) << pair;
}

TEST(Yarn, Magnitudes) {
  const Given both = {{"factor", 40.0}, {"mscale", 1.0}, {"mscale_all_dim", 1.0}};
  EXPECT_EQ(made(64, both).magnitude, 1.0);
  EXPECT_EQ(made(64, {{"factor", 4.0}, {"attention_factor", 0.5}}).magnitude, 0.5);
  EXPECT_EQ(made(64, {{"factor", 0.5}}).magnitude, 1.0);
  EXPECT_NE(error_of([] { made(8, {{"beta_fast", 0.5}}); }).find("beta_fast"), std::string::npos);
}

}  // namespace
}  // namespace relpos
