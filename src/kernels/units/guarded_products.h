// Products that hide: 0 times NaN is NaN, so what is not finite reaches only those who see it.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/buffer.h"
#include "base/half.h"
#include "kernels/block/kernels.h"

namespace relpos::bfloat16 {

// Whether a row of [from, end) may see a key of tile t.
inline bool sees(const Block& block, int from, int end, int64_t t) {
  const uint64_t* words = block.seen_words(t);
  for (int row = from; row < end; ++row) {
    if (words != nullptr && words[row] == 0) continue;
    if (block.lo[row] < (t + 1) * kTile && block.hi[row] > t * kTile) return true;
  }
  return false;
}

// Which keys of tile t the rows [from, end) see. With `reference`, rows that saw nothing see nothing.
struct VisibleRows {
  uint64_t bits[kRows] = {};

  VisibleRows(const Block& block, int from, int end, int64_t t, const float* reference = nullptr) {
    for (int row = from; row < end; ++row) {
      if (reference != nullptr && reference[row] == -HUGE_VALF) continue;
      bits[row - from] = block.problem->visible.bits(block.batch, block.head[row], block.index[row],
                                                     t, block.kernels->mask_bits);
    }
  }
  bool operator()(int64_t row, int64_t key) const noexcept {
    return ((bits[row] >> key) & 1U) != 0;
  }
};

// Numbers of a matrix in bfloat16 that are NaN or Inf, and the matrix with zeros in their places.
struct Cleaned {
  struct Found {
    int64_t at;
    float value;
  };
  std::vector<Found> found;
  Buffer<uint16_t> clean;

  Cleaned(const uint16_t* x, int64_t n) : clean(n) {
    for (int64_t at = 0; at < n; ++at) {
      const float value = widen_bfloat16(x[at]);
      clean[at] = std::isfinite(value) ? x[at] : uint16_t{0};
      if (!std::isfinite(value)) found.push_back({at, value});
    }
  }
};

// MatrixUnit::gemm of A [M, K] and the pairs of B [K, N] onto C [M, N], all without gaps, where what
// is not finite reaches element (m, n) only if `sees(m, k, n)`; no bit of the others depends on it.
template <typename Sees>
void guarded_gemm(const MatrixUnit& unit, int64_t M, int64_t N, int64_t K, const uint16_t* a,
                  const uint16_t* b, float* c, const Sees& sees) {
  const Cleaned of_a(a, M * K), of_b(b, K * N);
  unit.gemm(M, N, K, of_a.clean.get(), K, of_b.clean.get(), N, c, N, true);
  for (const auto& [at, value] : of_b.found) {
    const int64_t k = at / (2 * N) * 2 + at % 2, n = at % (2 * N) / 2;
    for (int64_t m = 0; m < M; ++m) {
      if (sees(m, k, n)) c[m * N + n] += widen_bfloat16(a[m * K + k]) * value;
    }
  }
  for (const auto& [at, value] : of_a.found) {
    const int64_t m = at / K, k = at % K;
    for (int64_t n = 0; n < N; ++n) {
      const float other = widen_bfloat16(b[k / 2 * 2 * N + 2 * n + k % 2]);
      if (std::isfinite(other) && sees(m, k, n)) c[m * N + n] += value * other;
    }
  }
}

}  // namespace relpos::bfloat16
