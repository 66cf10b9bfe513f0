#include <gtest/gtest.h>

#include "testing/schemes.h"

namespace relpos {
namespace {

using plain::WithTokens;

TEST(Funnel, ClsMeetsNoDistanceAndNoSegment) {
  const OptionValues sizes{
      {"heads", int64_t{2}}, {"head_dim", int64_t{3}}, {"max_length", int64_t{5}}};
  const WithTokens call("funnel", sizes, {1, 5}, {2, 0, 0, 1, 1});
  const RowTable &distances = call.terms.row_tables.at(0), &segments = call.terms.row_tables.at(1);
  for (int64_t i = 0; i < 5; ++i) {
    for (int64_t j = 0; j < 5; ++j) {
      const double first = distances.table.view.at({0, call.row(distances, i, j), 0});
      const bool cls = i == 0 || j == 0;
      EXPECT_EQ(first == 0.0, cls) << i << " " << j;
      EXPECT_EQ(call.row(segments, i, j), cls ? ClassMap::kNone : (i < 3) == (j < 3) ? 1 : 0);
    }
  }
}

TEST(Funnel, ClsIsInEverySegmentWhereItIsATokenAsTheOthers) {
  const OptionValues sizes{
      {"heads", int64_t{2}}, {"head_dim", int64_t{3}}, {"separate_cls", false}};
  const WithTokens call("funnel", sizes, {1, 4}, {2, 0, 0, 1});
  const RowTable& segments = call.terms.row_tables.at(1);
  for (int64_t i = 0; i < 4; ++i) {
    for (int64_t j = 0; j < 4; ++j) {
      const bool same = i == 0 || j == 0 || (i < 3) == (j < 3);
      EXPECT_EQ(call.row(segments, i, j), same ? 1 : 0) << i << " " << j;
    }
  }
}

}  // namespace
}  // namespace relpos
