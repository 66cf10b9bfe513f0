// Rows of a dense attn_mask: which keys they show, and what they add.
#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/masks.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstddef>

#include "kernels/block.h"
#include "kernels/simd/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace relpos {
namespace HWY_NAMESPACE {

// Of convert.cc, for the same target.
void widen_bfloat16(const void* half, int64_t n, float* row);
void widen_float16(const void* half, int64_t n, float* row);

namespace {

// Bit c: lane c of m. At most 64 lanes.
template <class D>
HWY_INLINE uint64_t bits_of(D d, hn::Mask<D> m) {
  alignas(8) uint8_t bytes[8] = {};
  hn::StoreMaskBits(d, m, bytes);
  uint64_t bits;
  hwy::CopyBytes<8>(bytes, &bits);
  constexpr size_t kLanesOfD = hn::MaxLanes(D());
  return kLanesOfD < 64 ? bits & ((uint64_t{1} << (kLanesOfD % 64)) - 1) : bits;
}

HWY_INLINE uint64_t bool_bits(const TensorView& mask, int64_t at, int64_t count) {
  using D = hn::CappedTag<uint8_t, kTile>;
  constexpr int64_t kBytes = static_cast<int64_t>(hn::MaxLanes(D()));
  const D d;
  alignas(64) uint8_t own[kTile] = {};
  const auto* row = static_cast<const uint8_t*>(mask.data) + at;
  const int64_t stride = mask.strides[3];
  if (stride != 1 || count < kTile) {
    for (int64_t c = 0; c < count; ++c) own[c] = row[c * stride];
    row = own;
  }
  uint64_t word = 0;
  for (int64_t c = 0; c < kTile; c += kBytes) {
    word |= bits_of(d, hn::Ne(hn::LoadU(d, row + c), hn::Zero(d))) << c;
  }
  return word;
}

// The row in float32; in `own` unless it lies so already. -inf from `count` on.
HWY_INLINE const float* floats(const TensorView& mask, int64_t at, int64_t count, float* own) {
  const auto* row = static_cast<const std::byte*>(mask.data) + at * item_size(mask.dtype);
  const bool whole = mask.strides[3] == 1;
  if (whole && mask.dtype == DType::kBFloat16) {
    widen_bfloat16(row, count, own);
  } else if (whole && mask.dtype == DType::kFloat16) {
    widen_float16(row, count, own);
  } else if (whole && mask.dtype == DType::kFloat32 && count == kTile) {
    return reinterpret_cast<const float*>(row);
  } else {
    for (int64_t c = 0; c < count; ++c) {
      const double value = mask.load(at + c * mask.strides[3]);
      const double most = std::isinf(value) ? HUGE_VAL : double{FLT_MAX};
      own[c] = static_cast<float>(std::clamp(value, -most, most));
    }
  }
  for (int64_t c = count; c < kTile; ++c) own[c] = -HUGE_VALF;
  return own;
}

// to_log2() of a vector. Pairs at -inf are hidden by their bits.
HWY_INLINE V scaled_to_log2(V term) {
  const F d;
  const auto set = [&](double x) HWY_ATTR { return hn::Set(d, static_cast<float>(x)); };
  const V size = hn::Abs(term), linear = set(kLinear);
  const V squeezed = hn::MulAdd(hn::Sub(size, linear), set(kSqueeze), set(kLinear * kLog2e));
  return hn::IfThenElse(hn::Gt(size, linear),
                        hn::CopySignToAbs(hn::Min(squeezed, set(double{FLT_MAX})), term),
                        hn::Mul(term, set(kLog2e)));
}

}  // namespace

uint64_t mask_bits(const TensorView& mask, int64_t at, int64_t count) {
  if (mask.dtype == DType::kBool) return bool_bits(mask, at, count);
  HWY_ALIGN_MAX float own[kTile];
  const float* row = floats(mask, at, count, own);
  const F d;
  uint64_t word = 0;
#pragma GCC unroll 4
  for (int64_t c = 0; c < kTile; c += kN) {
    const auto shown = hn::Ne(hn::LoadU(d, row + c), hn::Set(d, -HUGE_VALF));
    word |= bits_of(d, shown) << c;
  }
  return word;
}

void add_mask(const TensorView& mask, int64_t at, int64_t count, float* sums) {
  HWY_ALIGN_MAX float own[kTile];
  const float* row = floats(mask, at, count, own);
  const F d;
  const V linear = hn::Set(d, static_cast<float>(kLinear)), infinity = hn::Set(d, HUGE_VALF);
  auto squeezed = hn::MaskFromVec(hn::Zero(d));
#pragma GCC unroll 4
  for (int64_t c = 0; c < kTile; c += kN) {
    const V size = hn::Abs(hn::LoadU(d, row + c));
    squeezed = hn::Or(squeezed, hn::And(hn::Gt(size, linear), hn::Ne(size, infinity)));
  }
  const auto add = [&](auto&& scaled) HWY_ATTR {
#pragma GCC unroll 4
    for (int64_t c = 0; c < kTile; c += kN) {
      hn::Store(scaled(hn::LoadU(d, row + c), hn::Load(d, sums + c)), d, sums + c);
    }
  };
  if (HWY_UNLIKELY(!hn::AllFalse(d, squeezed))) {
    add([&](V x, V sum) HWY_ATTR { return hn::Add(scaled_to_log2(x), sum); });
  } else {
    const V log2e = hn::Set(d, static_cast<float>(kLog2e));
    add([&](V x, V sum) HWY_ATTR { return hn::MulAdd(x, log2e, sum); });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace relpos
HWY_AFTER_NAMESPACE();
