// Transposed rows are the rows, whatever their number, length and stride; NaN and Inf are noticed.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/buffer.h"
#include "kernels/block/kernels.h"

namespace relpos {
namespace {

constexpr float kUntouched = -7.0f;

TEST(Transpose, EveryShapeOnEveryTarget) {
  for (const Kernels& kernels : usable_kernels()) {
    for (const int64_t keys : {1, 3, 4, 7, 8, 15, 16, 17, 31, 33, 49, 63, 64}) {
      for (const int64_t D : {1, 3, 4, 8, 15, 16, 20, 33, 64, 80}) {
        const int64_t stride = D + 3, padded = round_up(keys, kLanes);
        // Between rows nothing is read, and nothing beyond the last.
        std::vector<float> rows((keys - 1) * stride + D, NAN);
        for (int64_t key = 0; key < keys; ++key) {
          for (int64_t x = 0; x < D; ++x) {
            rows[key * stride + x] = static_cast<float>(key * 100 + x + 1);
          }
        }
        std::vector<float> to(D * kTile, kUntouched);
        EXPECT_TRUE(kernels.transpose(rows.data(), stride, keys, D, to.data()));
        for (int64_t x = 0; x < D; ++x) {
          for (int64_t key = 0; key < kTile; ++key) {
            const float wanted = key < keys     ? rows[key * stride + x]
                                 : key < padded ? 0.0f
                                                : kUntouched;
            ASSERT_EQ(to[x * kTile + key], wanted)
                << kernels.name << " keys " << keys << " D " << D << " at " << x << ", " << key;
          }
        }
      }
    }
  }
}

TEST(Transpose, NoticesWhatIsNotFinite) {
  constexpr int64_t kKeys = 21, kDim = 19;
  std::vector<float> rows(kKeys * kDim, 1e38f), to(kDim * kTile);
  for (const Kernels& kernels : usable_kernels()) {
    for (float& x : rows) {
      for (const float bad : {NAN, HUGE_VALF, -HUGE_VALF}) {
        x = bad;
        EXPECT_FALSE(kernels.transpose(rows.data(), kDim, kKeys, kDim, to.data())) << kernels.name;
        EXPECT_FALSE(kernels.finite(rows.data(), kKeys * kDim)) << kernels.name;
      }
      x = 1e38f;
    }
    EXPECT_TRUE(kernels.transpose(rows.data(), kDim, kKeys, kDim, to.data())) << kernels.name;
    EXPECT_TRUE(kernels.finite(rows.data(), kKeys * kDim)) << kernels.name;
  }
}

}  // namespace
}  // namespace relpos
