#include <gtest/gtest.h>

#include "testing/schemes.h"

namespace relpos {
namespace {

using plain::WithTokens;

// Distances on the page of 0, 0.019, 0.02, 0.35 and 1 of its width, as Hugging Face's buckets.
TEST(Udop, CountsHundredthsOfThePage) {
  const std::vector<int64_t> x{0, 19, 20, 700, 2000}, y{0, -39, -40, -700, -2000};
  std::vector<int64_t> boxes = x;
  boxes.insert(boxes.end(), y.begin(), y.end());
  const WithTokens call("udop", {{"heads", int64_t{2}}}, {1, 2, 5}, boxes);
  const std::vector<DistanceBias>& biases = call.terms.biases;
  ASSERT_EQ(biases.size(), 3U);
  const int64_t across[] = {0, 0, 17, 28, 31}, down[] = {0, 1, 2, 12, 15},
                text[] = {0, 17, 18, 19, 20};
  for (int64_t j = 0; j < 5; ++j) {
    EXPECT_EQ(call.row(biases[0], 0, j), text[j]);
    EXPECT_EQ(call.row(biases[1], 0, j), across[j]);
    EXPECT_EQ(call.row(biases[2], 0, j), down[j]);
    EXPECT_EQ(call.row(biases[1], j, 0), j == 0 || j == 1 ? 0 : across[j] - 16);
  }
}

TEST(Udop, RefusesUnitsBeyondAllCoordinates) {
  const std::string text = plain::error_of(
      [] { make_part(*find_scheme("udop"), {{"heads", int64_t{2}}, {"unit", int64_t{1} << 40}}); });
  EXPECT_NE(text.find("unit"), std::string::npos) << text;
}

}  // namespace
}  // namespace relpos
