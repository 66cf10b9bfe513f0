// Products that may take longer than a caller waits who has asked to stop.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/parallel.h"
#include "kernels/block/kernels.h"

namespace relpos {

// Kernels::gemm, which asks between pieces of rows and columns where the product is large: each number
// has the bits that it has in one product. A strip of columns stays in the cache for all rows.
inline void long_product(const Kernels& kernels, int64_t M, int64_t N, int64_t K, const float* a,
                         int64_t row_stride, int64_t k_stride, const float* b, int64_t ldb,
                         float* c, int64_t ldc, bool accumulate) {
  constexpr int64_t kAtOnce = int64_t{1} << 25;  // multiplications: a millisecond or some
  if (M * N * K <= kAtOnce) {
    kernels.gemm(M, N, K, a, row_stride, k_stride, b, ldb, c, ldc, accumulate);
    return;
  }
  const int64_t rows = std::max<int64_t>(kGroup, kAtOnce / (kTile * K) / kGroup * kGroup);
  for (int64_t n = 0; n < N; n += kTile) {
    for (int64_t m = 0; m < M; m += rows) {
      check_cancelled();
      kernels.gemm(std::min(rows, M - m), std::min(kTile, N - n), K, a + m * row_stride, row_stride,
                   k_stride, b + n, ldb, c + m * ldc + n, ldc, accumulate);
    }
  }
}

}  // namespace relpos
