// The product of MatrixUnit from dot products of pairs, for the class Dots that is defined where
// this is included: once for the instructions, under their target, and once for their emulation.

template <int kRows, int kVectors>
inline void dot_block(int64_t K, const uint16_t* a, int64_t lda, const uint16_t* b, int64_t ldb,
                      float* c, int64_t ldc, bool accumulate) {
  typename Dots::Sum sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = accumulate ? Dots::load(c + r * ldc + v * 16) : Dots::zero();
    }
  }
  for (int64_t k = 0; k < K; k += 2) {
    typename Dots::Pairs column[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) column[v] = Dots::pairs(b + k * ldb + v * 32);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const typename Dots::Pairs factor = Dots::pair(a + r * lda + k);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] = Dots::add(sum[r][v], factor, column[v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) Dots::store(sum[r][v], c + r * ldc + v * 16);
  }
}

template <int kRows>
inline void dot_rows(int64_t N, int64_t K, const uint16_t* a, int64_t lda, const uint16_t* b,
                     int64_t ldb, float* c, int64_t ldc, bool accumulate) {
  int64_t n = 0;
  for (; n + 64 <= N; n += 64) {
    dot_block<kRows, 4>(K, a, lda, b + 2 * n, ldb, c + n, ldc, accumulate);
  }
  for (; n < N; n += 16) {
    dot_block<kRows, 1>(K, a, lda, b + 2 * n, ldb, c + n, ldc, accumulate);
  }
}

void dot_gemm(int64_t M, int64_t N, int64_t K, const uint16_t* a, int64_t lda, const uint16_t* b,
              int64_t ldb, float* c, int64_t ldc, bool accumulate) {
  int64_t m = 0;
  for (; m + 6 <= M; m += 6) {
    dot_rows<6>(N, K, a + m * lda, lda, b, ldb, c + m * ldc, ldc, accumulate);
  }
  for (; m + 2 <= M; m += 2) {
    dot_rows<2>(N, K, a + m * lda, lda, b, ldb, c + m * ldc, ldc, accumulate);
  }
}
