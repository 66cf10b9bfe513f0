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

// Of masks.cc, for the same target. visible [kGroup] &= the keys of tile t that the mask shows to the rows
// of a group. True: what a floating mask adds there may not be a number of at most kLinear.
bool see_mask(const Block& block, int group, int64_t t, uint64_t* visible);

namespace {

constexpr uint64_t kAll = ~uint64_t{0};

// Fetches what a later group will read of a dense mask, while `group` computes tile t: rows lie pages
// apart, where the hardware does not see them coming. Fetched a whole tile ahead, rows whose distance is a
// power of 2 push each other out of the caches.
HWY_INLINE void prefetch_mask(const Block& block, int group, int64_t t) {
  constexpr int kGroupsAhead = 3;
  const TensorView& mask = block.problem->visible.mask;
  if (!mask.given() || mask.strides[3] != 1) return;
  const int end = (block.rows + kGroup - 1) / kGroup * kGroup;
  int row = group + std::min(kGroupsAhead * kGroup, end);
  if (row >= end) {
    row -= end;
    ++t;
  }
  if (t * kTile >= block.problem->keys) return;
  for (int r = 0; r < kGroup; ++r) {
    const std::byte* from = block.mask_tile(row + r, t);
    for (int64_t n = 0; n < block.mask_step; n += 64) __builtin_prefetch(from + n);
  }
}

// Bits of the keys of tile t that a row sees, a dense mask aside.
HWY_INLINE uint64_t unmasked_bits(const Block& block, int row, int64_t t) {
  if (row >= block.rows) return 0;
  const int64_t first = t * kTile;
  const uint64_t within = interval_bits(block.lo[row] - first, block.hi[row] - first);
  const Visibility& visible = block.problem->visible;
  return visible.key_bits.empty()
             ? within
             : within & visible.key_bits[block.batch * block.problem->tiles() + t];
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
  bool beyond = false;  // as of see_mask()

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
      visible[r] = blind ? 0 : unmasked_bits(block, group + r, t);
      any |= visible[r];
    }
    if (any != 0 && block.problem->visible.mask.given()) {
      beyond = see_mask(block, group, t, visible);
      any = 0;
    }
    for (int r = 0; r < kGroup; ++r) {
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
