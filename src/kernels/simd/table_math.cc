// Products of matrices, and sigmoids: what tables that are computed before a call take of the SIMD target.
#include "base/table_math.h"

#include "base/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/table_math.cc"
// clang-format off: the header that compiles this file for each target comes first
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>
// clang-format on

#include <algorithm>

#include "base/parallel.h"
#include "kernels/block/long_product.h"

HWY_BEFORE_NAMESPACE();
namespace relpos {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<double>;
using V = hn::Vec<D>;
constexpr int64_t kN = static_cast<int64_t>(hn::MaxLanes(D()));
constexpr int64_t kVectors = 2;  // columns at a time, in vectors
// Rows at a time: with as many sums AVX-512 has registers left for B, the others for one of A, too.
constexpr int64_t kRowsOfSums = HWY_TARGET == HWY_AVX3 ? 8 : 6;

template <int64_t R>
HWY_INLINE void product(int64_t N, int64_t K, const double* a, int64_t row_stride, int64_t k_stride,
                        const double* b, int64_t ldb, double* c, int64_t ldc) {
  const D d;
  for (int64_t n = 0; n < N; n += kVectors * kN) {
    V sum[R][kVectors];
    for (int64_t r = 0; r < R; ++r) {
      for (int64_t v = 0; v < kVectors; ++v) sum[r][v] = hn::Load(d, c + r * ldc + n + v * kN);
    }
    for (int64_t k = 0; k < K; ++k) {
      V of_b[kVectors];
      for (int64_t v = 0; v < kVectors; ++v) of_b[v] = hn::Load(d, b + k * ldb + n + v * kN);
      for (int64_t r = 0; r < R; ++r) {
        const V of_a = hn::Set(d, a[r * row_stride + k * k_stride]);
        for (int64_t v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(of_a, of_b[v], sum[r][v]);
      }
    }
    for (int64_t r = 0; r < R; ++r) {
      for (int64_t v = 0; v < kVectors; ++v) hn::Store(sum[r][v], d, c + r * ldc + n + v * kN);
    }
  }
}

}  // namespace

void wide_gemm(int64_t M, int64_t N, int64_t K, const double* a, int64_t row_stride,
               int64_t k_stride, const double* b, int64_t ldb, double* c, int64_t ldc) {
  int64_t m = 0;
  for (; m + kRowsOfSums <= M; m += kRowsOfSums) {
    product<kRowsOfSums>(N, K, a + m * row_stride, row_stride, k_stride, b, ldb, c + m * ldc, ldc);
  }
  for (; m < M; ++m) product<1>(N, K, a + m * row_stride, 0, k_stride, b, ldb, c + m * ldc, ldc);
}

void logistic(const double* x, int64_t n, double* y) {
  const D d;
  const V one = hn::Set(d, 1.0), most = hn::Set(d, 706.0);  // Exp knows no larger number
  for (int64_t i = 0; i < n; i += kN) {
    const V minus = hn::Neg(hn::Load(d, x + i));
    const V power = hn::Exp(d, hn::IfThenElse(hn::Gt(minus, most), most, minus));
    const V result = hn::Div(one, hn::Add(one, power));
    hn::Store(hn::IfThenElse(hn::Eq(minus, minus), result, minus), d, y + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace relpos
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace relpos {

void matrix_product(int64_t M, int64_t N, int64_t K, const float* a, int64_t row_stride,
                    int64_t k_stride, const float* b, int64_t ldb, float* c, int64_t ldc) {
  long_product(tile_kernels(), M, N, K, a, row_stride, k_stride, b, ldb, c, ldc, false);
}

void add_matrix_product(int64_t M, int64_t N, int64_t K, const double* a, int64_t row_stride,
                        int64_t k_stride, const double* b, int64_t ldb, double* c, int64_t ldc) {
  constexpr int64_t kAtOnce = int64_t{1} << 24;  // multiplications: a millisecond or some
  constexpr int64_t kGroupRows = 24;             // whole groups of rows of every target
  const int64_t columns =
      std::clamp(kAtOnce / (kGroupRows * std::max<int64_t>(K, 1)) / kLanes * kLanes, kLanes, N);
  const int64_t rows =
      std::max(kGroupRows, kAtOnce / std::max<int64_t>(columns * K, 1) / kGroupRows * kGroupRows);
  for (int64_t n = 0; n < N; n += columns) {
    for (int64_t m = 0; m < M; m += rows) {
      check_cancelled();
      tile_kernels().wide_gemm(std::min(rows, M - m), std::min(columns, N - n), K,
                               a + m * row_stride, row_stride, k_stride, b + n, ldb,
                               c + m * ldc + n, ldc);
    }
  }
}

void logistic(int64_t n, const double* x, double* y) {
  in_pieces(
      n, [&](int64_t from, int64_t to) { tile_kernels().logistic(x + from, to - from, y + from); });
}

}  // namespace relpos
#endif
