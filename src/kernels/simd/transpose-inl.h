// Up to kTile rows transposed, in registers, for the SIMD target that includes this.
#if defined(RELPOS_TRANSPOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RELPOS_TRANSPOSE_INL_H_
#undef RELPOS_TRANSPOSE_INL_H_
#else
#define RELPOS_TRANSPOSE_INL_H_
#endif

#include <hwy/highway.h>

#include "base/buffer.h"
#include "kernels/simd/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace relpos {
namespace HWY_NAMESPACE {
namespace {

#if HWY_TARGET != HWY_SCALAR
constexpr int kQuads = static_cast<int>(kN) / kQuad;       // of a vector
static_assert(kQuads == 1 || kQuads == 2 || kQuads == 4);  // 128, 256 and 512 bits

// Transposes 4 x 4 numbers in each 128 bits of 4 rows.
HWY_INLINE void transpose_quads(V* rows) {
  const F d;
  const hn::RepartitionToWide<hn::RebindToUnsigned<F>> pairs;
  const auto wide = [&](V v) HWY_ATTR { return hn::BitCast(pairs, v); };
  const auto low = wide(hn::InterleaveLower(d, rows[0], rows[1]));
  const auto high = wide(hn::InterleaveUpper(d, rows[0], rows[1]));
  const auto low2 = wide(hn::InterleaveLower(d, rows[2], rows[3]));
  const auto high2 = wide(hn::InterleaveUpper(d, rows[2], rows[3]));
  rows[0] = hn::BitCast(d, hn::InterleaveLower(pairs, low, low2));
  rows[1] = hn::BitCast(d, hn::InterleaveUpper(pairs, low, low2));
  rows[2] = hn::BitCast(d, hn::InterleaveLower(pairs, high, high2));
  rows[3] = hn::BitCast(d, hn::InterleaveUpper(pairs, high, high2));
}

// The 128 bits n of vector v to those v of vector n; the vectors are kQuad apart.
HWY_INLINE void exchange_quads(V* of) {
  const F d;
  if constexpr (kQuads == 2) {
    const V first = of[0], second = of[kQuad];
    of[0] = hn::ConcatLowerLower(d, second, first);
    of[kQuad] = hn::ConcatUpperUpper(d, second, first);
  } else if constexpr (kQuads == 4) {
    const auto exchange = [&](V even, V odd, int to) HWY_ATTR {
      of[to] = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(odd), even);
      of[to + kQuad] = hn::OddEvenBlocks(odd, hn::SwapAdjacentBlocks(even));
    };
    const V a = of[0], b = of[kQuad], c = of[2 * kQuad], e = of[3 * kQuad];
    exchange(hn::ConcatLowerLower(d, c, a), hn::ConcatLowerLower(d, e, b), 0);
    exchange(hn::ConcatUpperUpper(d, c, a), hn::ConcatUpperUpper(d, e, b), 2 * kQuad);
  }
}

HWY_INLINE void transpose_square(V (&rows)[kN]) {
  RELPOS_UNROLLED(n, kQuads) transpose_quads(rows + n * kQuad);
  RELPOS_UNROLLED(n, kQuad) exchange_quads(rows + n);
}
#endif

// As of Kernels::transpose().
bool transpose(const float* rows, int64_t stride, int64_t keys, int64_t D, float* to) {
  int64_t x = 0;
  float not_finite = 0.0f;  // NaN, if any is
#if HWY_TARGET != HWY_SCALAR
  const F d;
  V sums[kQuad];  // chains: one would wait for itself
  RELPOS_UNROLLED(n, kQuad) sums[n] = hn::Zero(d);
  for (; x + kN <= D; x += kN) {
    for (int64_t key = 0; key < round_up(keys, kLanes); key += kN) {
      const float* from = rows + key * stride + x;
      const int64_t count = keys - key;
      V square[kN];
      if (HWY_LIKELY(count >= kN)) {
        RELPOS_UNROLLED(n, kN) square[n] = hn::LoadU(d, from + n * stride);
      } else {
        RELPOS_UNROLLED(n, kN)
        square[n] = n < count ? hn::LoadU(d, from + n * stride) : hn::Zero(d);
      }
      RELPOS_UNROLLED(n, kN) {
        sums[n % kQuad] = hn::MulAdd(square[n], hn::Zero(d), sums[n % kQuad]);
      }
      transpose_square(square);
      RELPOS_UNROLLED(n, kN) hn::StoreU(square[n], d, to + (x + n) * kTile + key);
    }
  }
  const V sum = hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3]));
  not_finite = hn::GetLane(hn::SumOfLanes(d, sum));
#endif
  for (; x < D; ++x) {
    for (int64_t key = 0; key < round_up(keys, kLanes); ++key) {
      const float value = key < keys ? load_one(rows + key * stride + x) : 0.0f;
      to[x * kTile + key] = value;
      not_finite += value * 0.0f;
    }
  }
  return not_finite == 0.0f;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace relpos
HWY_AFTER_NAMESPACE();

#endif
