#include "kernels/problem.h"

#include <gtest/gtest.h>

#include <utility>

namespace relpos {
namespace {

using Interval = std::pair<int64_t, int64_t>;

TEST(Visibility, IntervalsAreThoseOfABatchRowOrOfAll) {
  Visibility visible;
  visible.queries = 2;
  visible.keys = 9;
  EXPECT_EQ(visible.interval(1, 1), Interval(0, 9));
  visible.span = {{0, 1}, {0, 2}, {3, 4}, {3, 5}};
  visible.rows = 2;
  EXPECT_EQ(visible.interval(0, 1), Interval(0, 2));
  EXPECT_EQ(visible.interval(1, 0), Interval(3, 4));
  EXPECT_EQ(visible.interval(1, 1), Interval(3, 5));
  visible.span.resize(2);
  visible.rows = 1;
  EXPECT_EQ(visible.interval(1, 1), Interval(0, 2));
}

}  // namespace
}  // namespace relpos
