// 16-bit floats to and from float32, a row without gaps at a time. Rounding is to nearest even, as
// base/half.h does it. And rows of float32 scaled in double.
#include "base/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/convert.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <limits>
#include <type_traits>

#include "base/half.h"
#include "kernels/block/log2.h"

HWY_BEFORE_NAMESPACE();
namespace relpos {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using F = hn::ScalableTag<float>;
using Half = hn::Rebind<uint16_t, F>;
using Half16 = hn::Rebind<hwy::float16_t, F>;
using U = hn::RebindToUnsigned<F>;
constexpr int64_t kN = static_cast<int64_t>(hn::MaxLanes(F()));

HWY_INLINE uint16_t read(const void* half, int64_t i) {
  uint16_t bits;
  hwy::CopyBytes<2>(static_cast<const std::byte*>(half) + 2 * i, &bits);
  return bits;
}
HWY_INLINE void write(void* half, int64_t i, uint16_t bits) {
  hwy::CopyBytes<2>(&bits, static_cast<std::byte*>(half) + 2 * i);
}
// One vector's halves, at any address.
HWY_INLINE hn::Vec<Half> load(const void* half, int64_t i) {
  alignas(64) uint16_t bits[kN];
  hwy::CopyBytes<2 * kN>(static_cast<const std::byte*>(half) + 2 * i, bits);
  return hn::Load(Half(), bits);
}
HWY_INLINE void store(hn::Vec<Half> v, void* half, int64_t i) {
  alignas(64) uint16_t bits[kN];
  hn::Store(v, Half(), bits);
  hwy::CopyBytes<2 * kN>(bits, static_cast<std::byte*>(half) + 2 * i);
}

}  // namespace

void widen_bfloat16(const void* half, int64_t n, float* row) {
  int64_t i = 0;
  for (; i + kN <= n; i += kN) {
    const auto bits = hn::ShiftLeft<16>(hn::PromoteTo(U(), load(half, i)));
    hn::StoreU(hn::BitCast(F(), bits), F(), row + i);
  }
  for (; i < n; ++i) row[i] = relpos::widen_bfloat16(read(half, i));
}

void narrow_bfloat16(const float* row, int64_t n, void* half) {
  const U u;
  int64_t i = 0;
  for (; i + kN <= n; i += kN) {
    const auto x = hn::LoadU(F(), row + i);
    const auto bits = hn::BitCast(u, x);
    const auto high = hn::ShiftRight<16>(bits);
    const auto odd = hn::And(high, hn::Set(u, 1));
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(u, 0x7FFFU))));
    const auto quiet = hn::Or(high, hn::Set(u, 0x40U));
    const auto kept = hn::IfThenElse(hn::RebindMask(u, hn::Eq(x, x)), rounded, quiet);
    store(hn::DemoteTo(Half(), hn::BitCast(hn::RebindToSigned<F>(), kept)), half, i);
  }
  for (; i < n; ++i) write(half, i, relpos::round_bfloat16(row[i]));
}

void widen_float16(const void* half, int64_t n, float* row) {
  int64_t i = 0;
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_NEON
  for (; i + kN <= n; i += kN) {
    const auto bits = hn::BitCast(Half16(), load(half, i));
    hn::StoreU(hn::PromoteTo(F(), bits), F(), row + i);
  }
#endif
  for (; i < n; ++i) row[i] = relpos::widen_float16(read(half, i));
}

void narrow_float16(const float* row, int64_t n, void* half) {
  int64_t i = 0;
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_NEON
  for (; i + kN <= n; i += kN) {
    const auto bits = hn::DemoteTo(Half16(), hn::LoadU(F(), row + i));
    store(hn::BitCast(Half(), bits), half, i);
  }
#endif
  for (; i < n; ++i) write(half, i, relpos::round_float16(row[i]));
}

// No larger number times the multiplier is at most kLinear, but the next one maybe.
HWY_INLINE float largest_linear(double multiplier) {
  const double most = std::min(kLinear / std::fabs(multiplier), double{FLT_MAX});
  return std::nextafter(static_cast<float>(most), 0.0f);
}

HWY_INLINE bool too_large(float x, float limit) { return std::fabs(x) > limit && std::isfinite(x); }

// The larger of `largest` and the sizes of x, but of those that are finite.
HWY_INLINE hn::VFromD<F> largest_finite(hn::VFromD<F> largest, hn::VFromD<F> x) {
  const auto size = hn::Abs(x);
  const auto infinite = hn::Set(F(), std::numeric_limits<float>::infinity());
  return hn::Max(largest, hn::IfThenElseZero(hn::Lt(size, infinite), size));
}

bool linear(const float* x, int64_t n, double multiplier) {
  const F f;
  const float limit = largest_linear(multiplier);
  constexpr int64_t kChains = 4;  // a chain of maxima takes four times as long as what it reads
  hn::VFromD<F> chains[kChains];
#pragma GCC unroll 4
  for (int64_t c = 0; c < kChains; ++c) chains[c] = hn::Zero(f);
  int64_t i = 0;
  for (; i + kChains * kN <= n; i += kChains * kN) {
#pragma GCC unroll 4
    for (int64_t c = 0; c < kChains; ++c) {
      chains[c] = largest_finite(chains[c], hn::LoadU(f, x + i + c * kN));
    }
  }
  const auto largest = hn::Max(hn::Max(chains[0], chains[1]), hn::Max(chains[2], chains[3]));
  bool fits = hn::AllTrue(f, hn::Le(largest, hn::Set(f, limit)));
  for (; i < n; ++i) fits = fits && !too_large(x[i], limit);
  return fits;
}

bool scale_in_double(const float* from, int64_t step, int64_t n, double multiplier, double unit,
                     float* to) {
  const F f;
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> part;
  constexpr auto kPart = static_cast<int64_t>(hn::MaxLanes(part));
  const float limit = largest_linear(multiplier);
  const auto by = hn::Set(d, multiplier), last = hn::Set(d, unit);
  auto largest = hn::Zero(f);
  alignas(64) float numbers[kN];
  const auto run = [&](auto multiplied) HWY_ATTR {
    int64_t i = 0;
    // Emulated vectors are left to the loop below: Highway's conversion of these would make Inf finite.
    constexpr bool kKeepsInf = HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128;
    for (; kKeepsInf && i + kN <= n; i += kN) {
      const auto x =
          step == 1 ? hn::LoadU(f, from + i) : hn::Reverse(f, hn::LoadU(f, from - i - (kN - 1)));
      largest = largest_finite(largest, x);
      hn::Store(x, f, numbers);
      for (int64_t c = 0; c < kN; c += kPart) {
        auto y = hn::PromoteTo(d, hn::Load(part, numbers + c));
        if constexpr (multiplied) y = hn::Mul(y, by);
        hn::StoreU(hn::DemoteTo(part, hn::Mul(y, last)), part, to + i + c);
      }
    }
    return i;
  };
  const int64_t whole = multiplier == 1.0 ? run(std::false_type()) : run(std::true_type());
  bool fits = hn::AllTrue(f, hn::Le(largest, hn::Set(f, limit)));
  for (int64_t i = whole; i < n; ++i) {
    const float x = from[i * step];
    fits = fits && !too_large(x, limit);
    to[i] = static_cast<float>(static_cast<double>(x) * multiplier * unit);
  }
  return fits;
}

}  // namespace HWY_NAMESPACE
}  // namespace relpos
HWY_AFTER_NAMESPACE();
