#include <gtest/gtest.h>

#include "testing/schemes.h"

namespace relpos {
namespace {

using plain::error_of;
using plain::Made;

// The index that Swin's code builds from coordinates, for tokens of the window.
TEST(Swin, DistancesOfPlacedTokensAreTheOffsets) {
  for (const auto& [height, width] : {std::pair<int64_t, int64_t>{3, 4}, {1, 5}, {5, 1}, {7, 7}}) {
    const Made made(
        "swin",
        {{"heads", int64_t{2}},
         {"window", std::vector<double>{static_cast<double>(height), static_cast<double>(width)}}});
    const Terms terms = made.lower(2);
    const TensorView table = made.parameters()[0];
    ASSERT_EQ(table.dims(), (std::vector<int64_t>{(2 * height - 1) * (2 * width - 1), 2}));
    const auto place = made.place();
    for (int64_t i = 0; i < height * width; ++i) {
      for (int64_t j = 0; j < height * width; ++j) {
        const int64_t y = i / width - j / width + height - 1, x = i % width - j % width + width - 1;
        const double expected = table.at({y * (2 * width - 1) + x, 1});
        EXPECT_EQ(plain::bias(terms.biases[0], 1, place(j) - place(i)), expected) << i << " " << j;
      }
    }
    // A row of tokens below the window is beyond the table.
    EXPECT_EQ(plain::bias(terms.biases[0], 0, place(height * width) - place(0)), 0.0);
    EXPECT_EQ(place(-1), place(width - 1) - (2 * width - 1));
  }
}

TEST(Swin, Refuses) {
  const auto error = [](std::vector<double> window) {
    return error_of([&] { Made("swin", {{"heads", int64_t{1}}, {"window", window}}); });
  };
  for (const auto& window : {std::vector<double>{}, {1, 2, 3}, {0.0}, {2.5}, {-1.0, 2.0}}) {
    EXPECT_NE(error(window).find("swin: window: expected one or two whole numbers"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace relpos
