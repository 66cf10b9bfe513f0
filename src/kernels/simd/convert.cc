// 16-bit floats to and from float32, a row without gaps at a time. Rounding is to nearest even, as
// base/half.h does it.
#include "base/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/convert.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <cstddef>

#include "base/half.h"

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

}  // namespace HWY_NAMESPACE
}  // namespace relpos
HWY_AFTER_NAMESPACE();
