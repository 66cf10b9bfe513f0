// Products of matrices and sigmoids on the SIMD target in use, for tables that are computed before a call.
// N, ldb and ldc are multiples of kLanes, B and C aligned to them. Cancelled between pieces. The kernels
// define them.
#pragma once

#include <cstdint>

namespace relpos {

// C[M, N] = A B; A at a[m * row_stride + k * k_stride].
void matrix_product(int64_t M, int64_t N, int64_t K, const float* a, int64_t row_stride,
                    int64_t k_stride, const float* b, int64_t ldb, float* c, int64_t ldc);

// C[M, N] += A B.
void add_matrix_product(int64_t M, int64_t N, int64_t K, const double* a, int64_t row_stride,
                        int64_t k_stride, const double* b, int64_t ldb, double* c, int64_t ldc);

// y[n] = 1 / (1 + exp(-x[n])); n is a multiple of kLanes, x and y aligned to them.
void logistic(int64_t n, const double* x, double* y);

}  // namespace relpos
