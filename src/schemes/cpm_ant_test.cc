#include <gtest/gtest.h>

#include "testing/schemes.h"

namespace relpos {
namespace {

using plain::WithTokens;

TEST(CpmAnt, BucketsInASegmentAndNumbersBetweenTwo) {
  std::vector<int64_t> segments(1100, 2);
  segments[1] = 5;
  const WithTokens call("cpm_ant", {{"heads", int64_t{1}}}, {1, 1100}, segments);
  const DistanceBias &near = call.terms.biases.at(0), &pairs = call.terms.biases.at(1);
  EXPECT_EQ(call.parameter(0).shape[0], 512 + 32 * 32);
  const int64_t ahead[] = {2, 127, 200, 256, 512, 1024};
  const int64_t bucket[] = {2, 127, 148, 160, 192, 224};
  for (size_t n = 0; n < 6; ++n) {
    EXPECT_EQ(call.row(near, ahead[n], 0), bucket[n]) << ahead[n];
    EXPECT_EQ(call.row(near, 0, ahead[n]), 256 + bucket[n]) << ahead[n];
    EXPECT_EQ(call.row(pairs, 0, ahead[n]), ClassMap::kNone);
  }
  EXPECT_EQ(call.row(near, 0, 1), ClassMap::kNone);
  EXPECT_EQ(call.row(pairs, 0, 1), 512 + 32 * 2 + 5);
  EXPECT_EQ(call.row(pairs, 1, 0), 512 + 32 * 5 + 2);
}

TEST(CpmAnt, RefusesSegmentsThatItDoesNotHave) {
  const std::string text = plain::error_of([] {
    const WithTokens call("cpm_ant", {{"heads", int64_t{1}}, {"segments", int64_t{3}}}, {1, 2},
                          {0, 3});
  });
  EXPECT_NE(text.find("segments: expected 0 to 2, got 3"), std::string::npos) << text;
}

}  // namespace
}  // namespace relpos
