// exp2 and the one matrix product, for the SIMD target that includes this.
#if defined(RELPOS_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RELPOS_MATH_INL_H_
#undef RELPOS_MATH_INL_H_
#else
#define RELPOS_MATH_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

#include "base/buffer.h"
#include "kernels/block/sizes.h"

// A loop whose arrays stay in registers.
#ifndef RELPOS_UNROLLED
#define RELPOS_UNROLLED(n, end) _Pragma("GCC unroll 16") for (int n = 0; n < (end); ++n)
#endif

HWY_BEFORE_NAMESPACE();
namespace relpos {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using F = hn::ScalableTag<float>;
using V = hn::Vec<F>;
constexpr int64_t kN = static_cast<int64_t>(hn::MaxLanes(F()));
constexpr int kQuad = 4;  // floats of 128 bits
constexpr int kTileVectors = static_cast<int>(kTile / kN);
// Vectors of a register tile: 16 registers hold 6 x 2 accumulators, 32 hold 6 x 4.
constexpr int kWide = HWY_TARGET == HWY_AVX2 ? 2 : 4;

// One float of a caller's tensor, whose elements may lie at any address.
HWY_INLINE float load_one(const float* from) {
  float x;
  hwy::CopyBytes<sizeof x>(from, &x);
  return x;
}
HWY_INLINE void store_one(float x, float* to) { hwy::CopyBytes<sizeof x>(&x, to); }

// 2^x = power (1 + r slope), power the nearest power of 2, for x in [-125, 127.5]. Minimax polynomial of
// degree 6 on [-1/2, 1/2] with p(0) = 1 and coefficients that are floats, relative error 3.6e-9 before
// rounding.
struct PowerOf2 {
  V r, slope, power;

  HWY_INLINE explicit PowerOf2(V x) {
    const F d;
    const hn::RebindToSigned<F> di;
    // 1.5 * 2^23 + 127: adding it rounds x to an integer, whose low bits are then 2^n's exponent.
    const V magic = hn::Set(d, 12583039.0f);
    const V t = hn::Add(x, magic);
    r = hn::Sub(x, hn::Sub(t, magic));
    V p = hn::Set(d, 0.00015215782332234085f);
    p = hn::MulAdd(p, r, hn::Set(d, 0.0013388992520049214f));
    p = hn::MulAdd(p, r, hn::Set(d, 0.00961895752698183f));
    p = hn::MulAdd(p, r, hn::Set(d, 0.055503640323877335f));
    p = hn::MulAdd(p, r, hn::Set(d, 0.24022643268108368f));
    slope = hn::MulAdd(p, r, hn::Set(d, 0.6931471824645996f));
    power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, t)));
  }
};

// a b, and 0 where x < least; a NaN stays.
HWY_INLINE V multiply_from(V x, float least, V a, V b) {
  const F d;
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86  // one instruction less than by selection
  const __mmask16 from = _mm512_cmp_ps_mask(x.raw, _mm512_set1_ps(least), _CMP_NLT_UQ);
  return V{_mm512_maskz_mul_ps(from, a.raw, b.raw)};
#else
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, least)), hn::Mul(a, b));
#endif
}

// 2^x within 1 ulp (1.1 where a multiply-add rounds twice) for x in [-125, 127.5]; 0 below, NaN for
// NaN, no number to use above.
HWY_INLINE V exp2(V x) {
  const F d;
  const PowerOf2 of(x);
  const V p = hn::MulAdd(of.slope, of.r, hn::Set(d, 1.0f));
  return multiply_from(x, -125.0f, p, of.power);
}

// exp2 of weights that stay in float32.
struct FullExp2 {
  HWY_INLINE V operator()(V x) const { return exp2(x); }
};

// 1 + a r + b r^2 + c r^3 + e r^4
HWY_INLINE V quartic(V r, float a, float b, float c, float e) {
  const F d;
  const V high = hn::MulAdd(hn::MulAdd(hn::Set(d, e), r, hn::Set(d, c)), r, hn::Set(d, b));
  return hn::MulAdd(hn::MulAdd(high, r, hn::Set(d, a)), r, hn::Set(d, 1.0f));
}

// The same within 2.9e-6, for weights that are rounded to bfloat16: a polynomial of degree 4.
struct ShortExp2 {
  HWY_INLINE V operator()(V x) const {
    const F d;
    const hn::RebindToSigned<F> di;
    const V magic = hn::Set(d, 12583039.0f);
    const V t = hn::Add(x, magic);
    const V r = hn::Sub(x, hn::Sub(t, magic));
    const V p = quartic(r, 0.6931241154670715f, 0.24024106562137604f, 0.05590682849287987f,
                        0.009582576341927052f);
    const V power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, t)));
    return multiply_from(x, -125.0f, p, power);
  }
};

// tanh(x ln(2) / 2) = (2^x - 1) / (2^x + 1) within 3 ulp, NaN for NaN. 2^x - 1 is found without
// cancellation; beyond 30 the result is 1.
HWY_INLINE V tanh_of_log2(V x) {
  const F d;
  const V most = hn::Set(d, 30.0f), one = hn::Set(d, 1.0f);
  x = hn::IfThenElse(hn::Gt(x, most), most, x);
  x = hn::IfThenElse(hn::Lt(x, hn::Neg(most)), hn::Neg(most), x);
  const PowerOf2 of(x);
  const V less = hn::MulAdd(hn::Mul(of.slope, of.r), of.power, hn::Sub(of.power, one));
  return hn::Div(less, hn::Add(less, hn::Set(d, 2.0f)));
}

// What sums are multiplied by when their row's reference rises by `rise`: 2^-rise in two factors, for
// weights of up to 2^60 may have been summed, and 2^-rise alone may be below what exp2 flushes.
struct Rescaling {
  V first, second;

  HWY_INLINE explicit Rescaling(float rise) {
    constexpr float kMost = 100.0f;
    first = exp2(hn::Set(F(), -std::min(rise, kMost)));
    second = exp2(hn::Set(F(), -std::max(rise - kMost, 0.0f)));
  }
  HWY_INLINE V operator()(V x) const { return hn::Mul(hn::Mul(x, first), second); }
};

// The most products summed in one register before they join the rest: the rounding of a chain grows
// with its length, and at K = 130 one chain was off 4 times as much as a BLAS. Longer sums are cut
// into chains of one length. Products that join a sum in memory, as a block's rows join a key's
// gradient, may be longer, for their rounding is small beside that sum's.
constexpr int64_t kChain = 64, kJoiningChain = kRows;

// R rows of A times kVectors vectors of B. What c holds joins the sum where `accumulate`; `finish`
// takes the sums. c is scratch for K > kChain.
template <int R, int kVectors, typename Finish>
HWY_INLINE void register_tile(int64_t K, const float* HWY_RESTRICT a, int64_t row_stride,
                              int64_t k_stride, const float* HWY_RESTRICT b, int64_t ldb,
                              float* HWY_RESTRICT c, int64_t ldc, bool accumulate,
                              const Finish& finish) {
  const F d;
  const int64_t longest = accumulate ? kJoiningChain : kChain;
  const int64_t chains = std::max<int64_t>(1, (K + longest - 1) / longest);
  const int64_t chain = (K + chains - 1) / chains;
  for (int64_t first = 0;; first += chain) {
    V sum[R][kVectors];
    RELPOS_UNROLLED(r, R) { RELPOS_UNROLLED(v, kVectors) sum[r][v] = hn::Zero(d); }
    const int64_t end = std::min(K, first + chain);
#if HWY_TARGET == HWY_AVX2
    // Saves 2 to 13 % of a pass on Zen 3 where another machine shares the core; on a quiet core nothing.
#pragma GCC unroll 4
#endif
    for (int64_t k = first; k < end; ++k) {
      V column[kVectors];
      RELPOS_UNROLLED(v, kVectors) column[v] = hn::Load(d, b + k * ldb + v * kN);
      RELPOS_UNROLLED(r, R) {
        const V factor = hn::Set(d, a[r * row_stride + k * k_stride]);
        RELPOS_UNROLLED(v, kVectors) sum[r][v] = hn::MulAdd(factor, column[v], sum[r][v]);
      }
    }
    if (accumulate || first > 0) {
      RELPOS_UNROLLED(r, R) {
        RELPOS_UNROLLED(v, kVectors) {
          sum[r][v] = hn::Add(sum[r][v], hn::Load(d, c + r * ldc + v * kN));
        }
      }
    }
    if (end == K) {
      V total[R][kVectors];  // apart: memory that `finish` needs does not keep sums from registers
      RELPOS_UNROLLED(r, R) { RELPOS_UNROLLED(v, kVectors) total[r][v] = sum[r][v]; }
      finish(total);
      return;
    }
    RELPOS_UNROLLED(r, R) {
      RELPOS_UNROLLED(v, kVectors) hn::Store(sum[r][v], d, c + r * ldc + v * kN);
    }
  }
}

// Columns [n, N) in strips of kWide, 2 and 1 vectors; `finish(first column)` makes the strip's finish.
template <int R, typename MakeFinish>
HWY_INLINE void row_strip(int64_t n, int64_t N, int64_t K, const float* a, int64_t row_stride,
                          int64_t k_stride, const float* b, int64_t ldb, float* c, int64_t ldc,
                          bool accumulate, const MakeFinish& finish) {
  for (; n + kWide * kN <= N; n += kWide * kN) {
    register_tile<R, kWide>(K, a, row_stride, k_stride, b + n, ldb, c + n, ldc, accumulate,
                            finish(n));
  }
  for (; kWide > 2 && n + 2 * kN <= N; n += 2 * kN) {
    register_tile<R, 2>(K, a, row_stride, k_stride, b + n, ldb, c + n, ldc, accumulate, finish(n));
  }
  for (; n < N; n += kN) {
    register_tile<R, 1>(K, a, row_stride, k_stride, b + n, ldb, c + n, ldc, accumulate, finish(n));
  }
}

// Stores a strip's sums.
struct Store {
  float* c;
  int64_t ldc;
  template <int R, int kVectors>
  HWY_INLINE void operator()(V (&sum)[R][kVectors]) const {
    RELPOS_UNROLLED(r, R) {
      RELPOS_UNROLLED(v, kVectors) hn::Store(sum[r][v], F(), c + r * ldc + v * kN);
    }
  }
};

// Rows of p, kTile apart, times `scale`.
template <int R, int kVectors>
HWY_INLINE void load_products(float scale, const float* p, V (&products)[R][kVectors]) {
  const F d;
  const V by = hn::Set(d, scale);
  RELPOS_UNROLLED(r, R) {
    RELPOS_UNROLLED(v, kVectors) {
      products[r][v] = hn::Mul(hn::Load(d, p + r * kTile + v * kN), by);
    }
  }
}

// Calls f(first row, first column) for strips of a group's whole rows, kAtOnce rows at a time: so many
// stay in registers beside a polynomial.
constexpr int kAtOnce = 2;
template <typename Function>
HWY_INLINE void for_whole_rows(const Function& f) {
  for (int row = 0; row < kGroup; row += kAtOnce) {
    for (int64_t n = 0; n < kTile; n += kWide * kN) f(row, n);
  }
}

// Gives columns [n, end) of products that lie in p, times `scale`, to `finish`, a strip at a time.
template <int R, typename MakeFinish>
HWY_INLINE void loaded_strip(int64_t n, int64_t end, float scale, const float* p,
                             const MakeFinish& finish) {
  const auto strip = [&](auto vectors) HWY_ATTR {
    V scores[R][decltype(vectors)::value];
    load_products(scale, p + n, scores);
    finish(n)(scores);
    n += vectors * kN;
  };
  while (n + kWide * kN <= end) strip(std::integral_constant<int, kWide>());
  while (n < end) strip(std::integral_constant<int, 1>());
}

[[maybe_unused]] void gemm(int64_t M, int64_t N, int64_t K, const float* a, int64_t row_stride,
                           int64_t k_stride, const float* b, int64_t ldb, float* c, int64_t ldc,
                           bool accumulate) {
  int64_t m = 0;
  const auto strip = [&](auto rows) HWY_ATTR {
    constexpr int R = decltype(rows)::value;
    for (; m + R <= M; m += R) {
      float* to = c + m * ldc;
      row_strip<R>(0, N, K, a + m * row_stride, row_stride, k_stride, b, ldb, to, ldc, accumulate,
                   [&](int64_t n) HWY_ATTR { return Store{to + n, ldc}; });
    }
  };
  strip(std::integral_constant<int, kGroup>());
  strip(std::integral_constant<int, 4>());
  strip(std::integral_constant<int, 2>());
  strip(std::integral_constant<int, 1>());
}

[[maybe_unused]] void scale(int64_t rows, int64_t n, const float* from, int64_t stride,
                            const float* factors, int64_t factor_stride, float* to,
                            int64_t to_stride) {
  const F d;
  for (int64_t row = 0; row < rows; ++row, from += stride, to += to_stride) {
    const float factor = factors[row * factor_stride];
    const V by = hn::Set(d, factor);
    int64_t c = 0;
    for (; c + kN <= n; c += kN) hn::StoreU(hn::Mul(hn::LoadU(d, from + c), by), d, to + c);
    for (; c < n; ++c) store_one(load_one(from + c) * factor, to + c);
  }
}

[[maybe_unused]] void scale_columns(int64_t rows, int64_t n, const float* from,
                                    const float* factors, float* to, bool accumulate) {
  const F d;
  for (int64_t row = 0; row < rows; ++row, from += n, to += n) {
    for (int64_t c = 0; c < n; c += kN) {
      const V x = hn::LoadU(d, from + c), by = hn::LoadU(d, factors + c);
      hn::StoreU(accumulate ? hn::MulAdd(x, by, hn::LoadU(d, to + c)) : hn::Mul(x, by), d, to + c);
    }
  }
}

[[maybe_unused]] void add_row_sums(int64_t rows, int64_t n, const float* from, int64_t stride,
                                   float* to, int64_t to_stride) {
  const F d;
  for (int64_t row = 0; row < rows; ++row, from += stride) {
    V sum = hn::LoadU(d, from);
    for (int64_t c = kN; c < n; c += kN) sum = hn::Add(sum, hn::LoadU(d, from + c));
    to[row * to_stride] += hn::GetLane(hn::SumOfLanes(d, sum));
  }
}

[[maybe_unused]] double dot(const float* a, const float* b, int64_t n) {
  const hn::ScalableTag<double> wide;
  const hn::Rebind<float, decltype(wide)> narrow;
  const auto lanes = static_cast<int64_t>(hn::Lanes(wide));
  const auto at = [&](const float* x)
                      HWY_ATTR { return hn::PromoteTo(wide, hn::LoadU(narrow, x)); };
  auto even = hn::Zero(wide), odd = even;  // one sum would wait for itself
  for (int64_t c = 0; c < n; c += 2 * lanes) {
    even = hn::MulAdd(at(a + c), at(b + c), even);
    odd = hn::MulAdd(at(a + c + lanes), at(b + c + lanes), odd);
  }
  return hn::GetLane(hn::SumOfLanes(wide, hn::Add(even, odd)));
}

[[maybe_unused]] void rotate(float* x, int64_t pairs, bool interleaved, const float* cos,
                             const float* sin, float direction) {
  const F d;
  const V sign = hn::Set(d, direction);
  int64_t n = 0;
  for (; n + kN <= pairs; n += kN) {
    const V c = hn::LoadU(d, cos + n), s = hn::Mul(hn::LoadU(d, sin + n), sign);
    V first, second;
    if (interleaved) {
      hn::LoadInterleaved2(d, x + 2 * n, first, second);
    } else {
      first = hn::LoadU(d, x + n);
      second = hn::LoadU(d, x + pairs + n);
    }
    const V turned = hn::NegMulAdd(second, s, hn::Mul(first, c));
    const V other = hn::MulAdd(first, s, hn::Mul(second, c));
    if (interleaved) {
      hn::StoreInterleaved2(turned, other, d, x + 2 * n);
    } else {
      hn::StoreU(turned, d, x + n);
      hn::StoreU(other, d, x + pairs + n);
    }
  }
  for (; n < pairs; ++n) {
    float& a = x[interleaved ? 2 * n : n];
    float& b = x[interleaved ? 2 * n + 1 : pairs + n];
    const float first = a, second = b, s = direction * sin[n];
    a = first * cos[n] - second * s;
    b = second * cos[n] + first * s;
  }
}

[[maybe_unused]] float largest_norm(const float* kt, int64_t keys, int64_t D) {
  const F d;
  V largest = hn::Zero(d);
  for (int64_t c = 0; c < keys; c += kN) {
    V sum = hn::Zero(d);
    for (int64_t row = 0; row < D; ++row) {
      const V x = hn::Load(d, kt + row * kTile + c);
      sum = hn::MulAdd(x, x, sum);
    }
    largest = hn::Max(largest, sum);
  }
  return std::sqrt(hn::GetLane(hn::MaxOfLanes(d, largest)));
}

HWY_INLINE void clear(float* x, int64_t n) { std::fill_n(x, n, 0.0f); }

// p[kTile] columns outside [first, end) = 0, for what reads whole rows.
HWY_INLINE void clear_outside(float* p, int64_t first, int64_t end) {
  for (int r = 0; r < kGroup; ++r) {
    clear(p + r * kTile, first);
    clear(p + r * kTile + end, kTile - end);
  }
}

// Asks for one of `parts` parts of x[n] in the second level cache.
HWY_INLINE void prefetch_part(const float* x, int64_t n, int64_t part, int64_t parts) {
  for (int64_t i = n * part / parts; i < n * (part + 1) / parts; i += kLanes) {
    __builtin_prefetch(x + i, 0, 2);
  }
}

// A register mask of the lanes [c, c + kN) of a word of visibility bits.
HWY_INLINE hn::Mask<F> lanes_of(uint64_t bits, int64_t c) {
  const uint64_t part = bits >> c;
  alignas(8) uint8_t bytes[8];
  hwy::CopyBytes<8>(&part, bytes);
  return hn::LoadMaskBits(F(), bytes);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace relpos
HWY_AFTER_NAMESPACE();

#endif
