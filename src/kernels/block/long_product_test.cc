// Large products ask between their pieces, and have the bits of one product.
#include "kernels/block/long_product.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>

namespace relpos {
namespace {

TEST(LongProduct, AsksAndHasTheBitsOfOne) {
  struct Shape {
    int64_t M, N, K, pieces;
  };
  // Small; wide; tall; deep.
  for (const auto [M, N, K, pieces] :
       {Shape{64, 128, 64, 0}, {63, 1040, 600, 16}, {9001, 64, 70, 1}, {17, 80, 30000, 2}}) {
    for (const bool accumulate : {false, true}) {
      SCOPED_TRACE(testing::Message() << M << " " << N << " " << K << " " << accumulate);
      const Buffer<float> a(M * K), b(K * N), one(M * N), divided(M * N);
      for (int64_t n = 0; n < M * K; ++n) a[n] = 0.1F * static_cast<float>(n % 89 - 44);
      for (int64_t n = 0; n < K * N; ++n) b[n] = 0.1F * static_cast<float>(n % 97 - 48);
      for (int64_t n = 0; n < M * N; ++n) one[n] = divided[n] = static_cast<float>(n % 7);
      tile_kernels().gemm(M, N, K, a.get(), 1, M, b.get(), N, one.get(), N, accumulate);
      CancelToken token;
      int64_t asked = 0;
      token.interval = std::chrono::milliseconds(0);
      token.poll = [&asked] { return ++asked < 0; };
      const CallScope scope(&token);
      long_product(tile_kernels(), M, N, K, a.get(), 1, M, b.get(), N, divided.get(), N,
                   accumulate);
      EXPECT_GE(asked, pieces);
      EXPECT_EQ(std::memcmp(one.get(), divided.get(), static_cast<size_t>(M * N) * sizeof(float)),
                0);
    }
  }
}

}  // namespace
}  // namespace relpos
