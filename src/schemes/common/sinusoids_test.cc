#include "schemes/common/sinusoids.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "schemes/common/frequencies.h"

namespace relpos::common {
namespace {

TEST(Sinusoids, AreThoseOfEachDistance) {
  const std::vector<double> frequencies = rotary_frequencies(10, 100.0);
  for (const bool interleaved : {false, true}) {
    for (const int64_t farthest : {int64_t{40}, int64_t{1} << 40}) {
      const auto waves = sinusoids(frequencies, {.farthest = farthest, .interleaved = interleaved});
      for (const int64_t first : {-100, -31, 0, 7, 1000000}) {
        constexpr int64_t kCount = 70;
        std::vector<double> features(kCount * 10);
        waves(first, kCount, features.data());
        for (int64_t m = 0; m < kCount; ++m) {
          const int64_t n = std::clamp(-(first + m), -farthest, farthest);
          for (size_t p = 0; p < 5; ++p) {
            const double angle = static_cast<double>(n) * frequencies[p];
            const size_t at = static_cast<size_t>(m) * 10;
            // The angle itself is rounded: by half a unit in its last place.
            const double most = 2e-15 + 2.3e-16 * std::fabs(angle);
            EXPECT_NEAR(features[at + (interleaved ? 2 * p : p)], std::sin(angle), most) << n;
            EXPECT_NEAR(features[at + (interleaved ? 2 * p + 1 : 5 + p)], std::cos(angle), most);
          }
        }
      }
    }
  }
}

TEST(Sinusoids, DoNotDependOnWhereTheRowsBegin) {
  const auto waves = sinusoids(rotary_frequencies(6, 10000.0));
  std::vector<double> all(100 * 6), own(6);
  waves(-50, 100, all.data());
  for (int64_t m = 0; m < 100; ++m) {
    waves(m - 50, 1, own.data());
    for (size_t w = 0; w < 6; ++w) EXPECT_EQ(own[w], all[static_cast<size_t>(m) * 6 + w]);
  }
}

}  // namespace
}  // namespace relpos::common
