// Rows of a dense attn_mask: which keys they show, and what they add.
#include "base/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/masks.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstddef>

#include "base/buffer.h"
#include "kernels/block/block.h"
#include "kernels/block/log2.h"
#include "kernels/simd/math-inl.h"
#include "kernels/simd/sight-inl.h"

HWY_BEFORE_NAMESPACE();
namespace relpos {
namespace HWY_NAMESPACE {

// Defined in convert.cc, for the same target.
void widen_bfloat16(const void* half, int64_t n, float* row);
void widen_float16(const void* half, int64_t n, float* row);

namespace {

using Bytes = hn::CappedTag<uint8_t, kTile>;
using Halves = hn::CappedTag<int16_t, kTile>;
using Integers = hn::RebindToSigned<F>;

// A vector of D from element c of a row on.
template <class D>
HWY_INLINE hn::Vec<D> load(D d, const std::byte* row, int64_t c) {
  using T = hn::TFromD<D>;
  return hn::LoadU(d, reinterpret_cast<const T*>(row) + c);
}

// Whether a tile's keys are kTile elements that vectors read.
HWY_INLINE bool is_whole(const TensorView& mask, int64_t count) {
  return count == kTile && has_vector_rows(mask);
}

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

// Bit c: element c of a whole tile is not `hidden`. Of floats, D compares the bits, so that a NaN is one
// that is not.
template <class D>
HWY_INLINE uint64_t bits_other_than(D d, hn::Vec<D> hidden, const std::byte* row) {
  constexpr int64_t kStep = static_cast<int64_t>(hn::MaxLanes(D()));
  uint64_t word = 0;
#pragma GCC unroll 4
  for (int64_t c = 0; c < kTile; c += kStep) {
    word |= bits_of(d, hn::Ne(load(d, row, c), hidden)) << c;
  }
  return word;
}

// Element c of a row that starts at `row`.
HWY_INLINE double element(const TensorView& mask, const std::byte* row, int64_t c) {
  TensorView from = mask;
  from.data = const_cast<std::byte*>(row);
  return from.load(c * mask.strides[3]);
}

// The row in float32; in `own` unless it lies so already. -inf from `count` on.
HWY_INLINE const float* floats(const TensorView& mask, const std::byte* row, int64_t count,
                               float* own) {
  const bool gapless = mask.strides[3] == 1;
  if (gapless && mask.dtype == DType::kBFloat16) {
    widen_bfloat16(row, count, own);
  } else if (gapless && mask.dtype == DType::kFloat16) {
    widen_float16(row, count, own);
  } else if (is_whole(mask, count)) {
    return reinterpret_cast<const float*>(row);
  } else {
    for (int64_t c = 0; c < count; ++c) {
      const double value = element(mask, row, c);
      const double most = std::isinf(value) ? HUGE_VAL : double{FLT_MAX};
      own[c] = static_cast<float>(std::clamp(value, -most, most));
    }
  }
  for (int64_t c = count; c < kTile; ++c) own[c] = -HUGE_VALF;
  return own;
}

HWY_INLINE uint64_t row_bits(const TensorView& mask, const std::byte* row, int64_t count) {
  if (mask.dtype == DType::kBool) {
    if (is_whole(mask, count)) return bits_other_than(Bytes(), hn::Zero(Bytes()), row);
    uint64_t word = 0;
    for (int64_t c = 0; c < count; ++c) {
      word |= uint64_t{row[c * mask.strides[3]] != std::byte{0}} << c;
    }
    return word;
  }
  if (is_whole(mask, count) && mask.dtype != DType::kFloat32) {
    const auto infinity = static_cast<int16_t>(mask.dtype == DType::kBFloat16 ? 0xFF80 : 0xFC00);
    return bits_other_than(Halves(), hn::Set(Halves(), infinity), row);
  }
  HWY_ALIGN_MAX float own[kTile];
  const auto* from = reinterpret_cast<const std::byte*>(floats(mask, row, count, own));
  return bits_other_than(Integers(), hn::BitCast(Integers(), hn::Set(F(), -HUGE_VALF)), from);
}

// The largest number of a type, as its bits, that is at most kLinear.
HWY_INLINE int32_t most_linear(DType dtype) {
  if (dtype == DType::kFloat16) return 0x7BFF;
  const auto linear = static_cast<float>(kLinear);
  int32_t bits;
  hwy::CopySameSize(&linear, &bits);
  return dtype == DType::kBFloat16 ? bits >> 16 : bits;
}

// Whether the bits of an element of a group's rows, less the sign, are above `most`.
template <class D>
HWY_INLINE bool any_above(D d, int32_t most, const std::byte* const (&rows)[kGroup]) {
  using T = hn::TFromD<D>;
  constexpr int64_t kStep = static_cast<int64_t>(hn::MaxLanes(D()));
  const auto unsign = hn::Set(d, hwy::LimitsMax<T>());
  auto top = hn::Zero(d), other = top;  // one alone would wait for itself
  for (int r = 0; r < kGroup; r += 2) {
#pragma GCC unroll 4
    for (int64_t c = 0; c < kTile; c += kStep) {
      top = hn::Max(top, hn::And(load(d, rows[r], c), unsign));
      other = hn::Max(other, hn::And(load(d, rows[r + 1], c), unsign));
    }
  }
  return !hn::AllFalse(d, hn::Gt(hn::Max(top, other), hn::Set(d, static_cast<T>(most))));
}

// What times log2(e) is to_log2() of a finite number beyond kLinear.
HWY_INLINE V squeezed(V term) {
  const F d;
  const auto set = [&](double x) HWY_ATTR { return hn::Set(d, static_cast<float>(x)); };
  const V more = hn::Sub(hn::Abs(term), set(kLinear));
  const V size = hn::MulAdd(more, set(kSqueeze / kLog2e), set(kLinear));
  constexpr double kMost = FLT_MAX / kLog2e * (1 - 1e-7);  // rounded, its product is no infinity
  return hn::CopySignToAbs(hn::Min(size, set(kMost)), term);
}

}  // namespace

uint64_t mask_bits(const TensorView& mask, int64_t at, int64_t count) {
  const auto* row = static_cast<const std::byte*>(mask.data) + at * item_size(mask.dtype);
  return row_bits(mask, row, count);
}

MaskSight see_mask(const Block& block, int group, int64_t t, uint64_t* visible) {
  const TensorView& mask = block.problem->visible.mask;
  const int64_t count = std::min(kTile, block.problem->keys - t * kTile);
  const bool whole = is_whole(mask, count), boolean = mask.dtype == DType::kBool;
  const std::byte* rows[kGroup];
  for (int r = 0; r < kGroup; ++r) rows[r] = block.mask_tile(group + r, t);
  if (boolean && whole) {
    for (int r = 0; r < kGroup; ++r) {
      visible[r] &= bits_other_than(Bytes(), hn::Zero(Bytes()), rows[r]);
    }
    return MaskSight::kMayHide;
  }
  if (whole) {
    const int32_t most = most_linear(mask.dtype);
    const bool above = mask.dtype == DType::kFloat32 ? any_above(Integers(), most, rows)
                                                     : any_above(Halves(), most, rows);
    if (!above) return MaskSight::kShowsAll;
  }
  for (int r = 0; r < kGroup; ++r) {
    if (visible[r] != 0) visible[r] &= row_bits(mask, rows[r], count);
  }
  return boolean ? MaskSight::kMayHide : MaskSight::kBeyond;
}

void see_classes(const Block& block, int group, int64_t t, uint64_t* visible) {
  const int64_t count = std::min(kTile, block.problem->keys - t * kTile);
  for (const PairClasses& classes : block.problem->visible.classes) {
    const PairPanel panel = pair_panel(classes, 1, block.batch);
    const auto hidden = static_cast<uint8_t>(classes.hidden);
    for (int r = 0; r < kGroup; ++r) {
      if (visible[r] == 0) continue;
      const uint8_t* bytes = panel.bytes(block.index[std::min(group + r, block.rows - 1)], t);
      if (panel.in_place(count)) {
        const auto* row = reinterpret_cast<const std::byte*>(bytes);
        visible[r] &= bits_other_than(Bytes(), hn::Set(Bytes(), hidden), row);
        continue;
      }
      for (int64_t c = 0; c < count; ++c) {
        visible[r] &= ~(uint64_t{bytes[c * panel.key_stride] == hidden} << c);
      }
    }
  }
}

void read_mask(const Block& block, int group, int64_t t, bool beyond, float* own,
               const float** rows) {
  const F d;
  const TensorView& mask = block.problem->visible.mask;
  const int64_t count = std::min(kTile, block.problem->keys - t * kTile);
  const V linear = hn::Set(d, static_cast<float>(kLinear)), infinity = hn::Set(d, HUGE_VALF);
  const std::byte* last = nullptr;
  for (int r = 0; r < kGroup; ++r) {
    const std::byte* row = block.mask_tile(group + r, t);
    if (row == last) {
      rows[r] = rows[r - 1];
      continue;
    }
    last = row;
    float* to = own + r * kTile;
    rows[r] = floats(mask, row, count, to);
    if (!beyond) continue;
    for (int64_t c = 0; c < kTile; c += kN) {
      const V x = hn::LoadU(d, rows[r] + c), size = hn::Abs(x);
      const auto far = hn::And(hn::Gt(size, linear), hn::Ne(size, infinity));
      hn::Store(hn::IfThenElse(far, squeezed(x), x), d, to + c);
    }
    rows[r] = to;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace relpos
HWY_AFTER_NAMESPACE();
