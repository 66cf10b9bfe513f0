#include <gtest/gtest.h>

#include "testing/schemes.h"

namespace relpos {
namespace {

using plain::WithTokens;

constexpr int64_t kHeads = 2, kHeadDim = 3, kWidth = 4;

TEST(XLNet, ProjectsSinusoidsAndKnowsSegments) {
  const WithTokens call("xlnet", {{"heads", kHeads}, {"head_dim", kHeadDim}, {"width", kWidth}},
                        {1, 3}, {0, 1, 1});
  const TensorView& r = call.parameter(0);
  const RowTable& distances = call.terms.row_tables.at(0);
  // Of n = pos_q - pos_k = 1 at frequencies 1 and 0.01.
  const double waves[] = {0.8414709848, 0.0099998333, 0.5403023059, 0.9999500004};
  for (int64_t h = 0; h < kHeads; ++h) {
    for (int64_t d = 0; d < kHeadDim; ++d) {
      double sum = 0.0;
      for (int64_t w = 0; w < kWidth; ++w) sum += waves[w] * r.at({w, h, d});
      EXPECT_NEAR(distances.table.view.at({h, distances.map(-1), d}), sum, 1e-9);
    }
  }
  const RowTable& segments = call.terms.row_tables.at(1);
  const TensorView &seg_embed = call.parameter(4), &table = segments.table.view;
  EXPECT_EQ(call.row(segments, 1, 2), 0);
  EXPECT_EQ(call.row(segments, 0, 2), 1);
  EXPECT_EQ(call.row(segments, 2, 0), 1);
  EXPECT_EQ(table.at({1, 0, 2}), seg_embed.at({0, 1, 2}));
  EXPECT_EQ(segments.added.view.data, call.parameter(3).data);
  EXPECT_EQ(distances.added.view.data, call.parameter(2).data);
  EXPECT_EQ(call.terms.query_added.at(0).view.data, call.parameter(1).data);
}

}  // namespace
}  // namespace relpos
