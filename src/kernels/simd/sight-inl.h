// Which keys of a tile the rows of a block see, for the SIMD target that includes this.
#if defined(RELPOS_SIGHT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RELPOS_SIGHT_INL_H_
#undef RELPOS_SIGHT_INL_H_
#else
#define RELPOS_SIGHT_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

#include "kernels/block.h"
#include "kernels/simd/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace relpos {
namespace HWY_NAMESPACE {

// Of masks.cc, for the same target.
uint64_t mask_bits(const TensorView& mask, int64_t at, int64_t count);

namespace {

constexpr uint64_t kAll = ~uint64_t{0};

// Fetches what the rows of a group read of a dense mask in tile t: rows lie pages apart, where the
// hardware does not see them coming.
HWY_INLINE void prefetch_mask(const Block& block, int group, int64_t t) {
  const TensorView& mask = block.problem->visible.mask;
  const int64_t first = t * kTile;
  if (!mask.given() || mask.strides[3] != 1 || first >= block.problem->keys) return;
  const int64_t bytes = std::min(kTile, block.problem->keys - first) * item_size(mask.dtype);
  for (int row = group; row < std::min(group + kGroup, block.rows); ++row) {
    const int64_t at = mask.offset({block.batch, block.head[row], block.index[row], first});
    const auto* from = static_cast<const std::byte*>(mask.data) + at * item_size(mask.dtype);
    for (int64_t n = 0; n < bytes; n += 64) __builtin_prefetch(from + n);
  }
}

// Bits of the keys of tile t that a row sees.
HWY_INLINE uint64_t visible_bits(const Block& block, int row, int64_t t) {
  if (row >= block.rows) return 0;
  const int64_t first = t * kTile;
  const uint64_t within = interval_bits(block.lo[row] - first, block.hi[row] - first);
  const Visibility& visible = block.problem->visible;
  if (within == 0 || visible.by_interval()) return within;
  return visible.bits(block.batch, block.head[row], block.index[row], t, mask_bits);
}

// Whether every row of a block sees all keys of tile t.
HWY_INLINE bool see_all(const Block& block, int64_t t) {
  return block.all_from <= t * kTile && block.all_to >= (t + 1) * kTile &&
         block.problem->visible.by_interval();
}

// What the rows of a group see of a tile: `any` of them, `all` of them, the columns that matter, and
// whether all see all of those.
struct GroupSight {
  uint64_t visible[kGroup];
  uint64_t any = 0, all = kAll;
  bool whole = false;

  GroupSight() = default;
  // Of a group whose rows see the whole tile.
  static HWY_INLINE GroupSight everything() {
    GroupSight sight;
    std::fill_n(sight.visible, kGroup, kAll);
    sight.any = kAll;
    sight.whole = true;
    return sight;
  }
  // With `reference`, rows that saw nothing and rows past the block's last see nothing; without, the
  // latter do not count in `all`.
  HWY_INLINE GroupSight(const Block& block, int group, int64_t t, const float* reference) {
    for (int r = 0; r < kGroup; ++r) {
      const bool blind = reference != nullptr && reference[group + r] == -HUGE_VALF;
      visible[r] = blind ? 0 : visible_bits(block, group + r, t);
      any |= visible[r];
      if (reference != nullptr || group + r < block.rows) all &= visible[r];
    }
    whole = any != 0 && (~all & interval_bits(first(), end())) == 0;
  }
  // [first, end) columns hold every visible key; multiples of a vector.
  HWY_INLINE int64_t first() const {
    return static_cast<int64_t>(hwy::Num0BitsBelowLS1Bit_Nonzero64(any)) / kN * kN;
  }
  HWY_INLINE int64_t last() const {
    return kTile - static_cast<int64_t>(hwy::Num0BitsAboveMS1Bit_Nonzero64(any));
  }
  HWY_INLINE int64_t end() const { return (last() + kN - 1) / kN * kN; }
};

// Sets hidden columns among [c, c + kVectors * kN) to `value`, of the group's rows from `row` on.
template <int R, int kVectors>
HWY_INLINE void hide(V (&sum)[R][kVectors], const GroupSight& sight, int64_t c, float value,
                     int row = 0) {
  if (sight.whole) return;
  const V hidden = hn::Set(F(), value);
  RELPOS_UNROLLED(r, R) {
    RELPOS_UNROLLED(v, kVectors) {
      sum[r][v] = hn::IfThenElse(lanes_of(sight.visible[row + r], c + v * kN), sum[r][v], hidden);
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace relpos
HWY_AFTER_NAMESPACE();

#endif
