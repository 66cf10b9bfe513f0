// Products of float32 matrices on the SIMD target in use, for tables that are computed before a call.
#pragma once

#include <cstdint>

namespace relpos {

// C[M, N] = A B; A at a[m * row_stride + k * k_stride]; N, ldb and ldc are multiples of kLanes, B and C
// aligned to them. Cancelled between pieces. The kernels define it.
void matrix_product(int64_t M, int64_t N, int64_t K, const float* a, int64_t row_stride,
                    int64_t k_stride, const float* b, int64_t ldb, float* c, int64_t ldc);

}  // namespace relpos
