#include "schemes/common/slopes.h"

#include <gtest/gtest.h>

#include <cmath>

namespace relpos {
namespace {

using common::geometric_slopes;
using common::paper_slopes;

void expect_near(const std::vector<double>& slopes, const std::vector<double>& golden,
                 size_t from = 0) {
  ASSERT_GE(slopes.size(), from + golden.size());
  for (size_t h = 0; h < golden.size(); ++h) {
    EXPECT_NEAR(slopes[from + h], golden[h], 1e-6 * golden[h]) << h;
  }
}

TEST(Slopes, PaperPowersOfTwo) {
  expect_near(paper_slopes(8),
              {0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625});
  expect_near(paper_slopes(1), {std::exp2(-8.0)});
  expect_near(paper_slopes(2), {0.0625, 0.00390625});
}

TEST(Slopes, PaperOtherHeadCounts) {
  expect_near(paper_slopes(3), {0.0625, 0.00390625, 0.25});
  expect_near(paper_slopes(6), {0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125});
  EXPECT_EQ(paper_slopes(12).size(), 12U);
  expect_near(paper_slopes(12), {0.00390625, 0.70710678, 0.35355339, 0.17677670, 0.08838835}, 7);
  EXPECT_EQ(paper_slopes(20).size(), 20U);
  expect_near(paper_slopes(20), {std::exp2(-0.5), 0.5});
  expect_near(paper_slopes(20), {0.84089642, 0.59460356, 0.42044821, 0.29730178}, 16);
  EXPECT_EQ(paper_slopes(71).size(), 71U);
  expect_near(paper_slopes(71), {0.91700404});
  expect_near(paper_slopes(71),
              {0.00390625, 0.95760328, 0.87812608, 0.80524517, 0.73841307, 0.67712777, 0.62092891,
               0.56939432},
              63);
}

TEST(Slopes, GeometricForEveryHeadCount) {
  EXPECT_EQ(geometric_slopes(12).size(), 12U);
  expect_near(geometric_slopes(12),
              {std::exp2(-8.0 / 12), std::exp2(-16.0 / 12), 0.25, 0.15749013});
  expect_near(geometric_slopes(8), {0.5, 0.25});
}

}  // namespace
}  // namespace relpos
