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

#include "kernels/block/block.h"
#include "kernels/simd/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace relpos {
namespace HWY_NAMESPACE {

// What a mask does to the tile of a group: it shows all keys and adds numbers of at most kLinear; it may
// hide some; or it is a floating mask that may hide some or add other numbers.
enum class MaskSight { kShowsAll, kMayHide, kBeyond };
// In masks.cc, for the same target. visible [kGroup] &= the keys of tile t that the mask shows to the rows
// of a group.
MaskSight see_mask(const Block& block, int group, int64_t t, uint64_t* visible);
// visible [kGroup] &= the keys of tile t whose pairs with the rows of a group are of no hidden class.
void see_classes(const Block& block, int group, int64_t t, uint64_t* visible);

namespace {

// Which rows m of a product see row k of B: bit k + first of bits[m], or, with `by_row_of_b`, bit
// m + first of bits[k].
struct Seen {
  const uint64_t* bits;
  int64_t first;
  bool by_row_of_b;

  bool operator()(int64_t m, int64_t k) const {
    return ((by_row_of_b ? bits[k] >> (m + first) : bits[m] >> (k + first)) & 1U) != 0;
  }
};

// C += A B where some of B [K, N], K <= kRows, is NaN or Inf: `product`, which is gemm, on B with zeros in
// their places, then their products for the rows m that see them. So the bits of all others do not
// depend on what hides behind a zero of A. (gemm comes as an argument, for where it is called by name
// more often the compiler no longer specialises it: 10 % of a call of 32 tokens.)
#ifdef __clang__
#define RELPOS_APART __attribute__((noinline))
#else
#define RELPOS_APART __attribute__((noipa))
#endif
[[maybe_unused]] RELPOS_APART void guarded_gemm(decltype(&gemm) product, int64_t M, int64_t N,
                                                int64_t K, const float* a, int64_t row_stride,
                                                int64_t k_stride, const float* b, int64_t ldb,
                                                float* c, int64_t ldc, const Seen& sees) {
  constexpr int64_t kColumns = 2 * kLanes;
  HWY_ALIGN_MAX float clean[kRows * kColumns];
  for (int64_t n = 0; n < N; n += kColumns) {
    const int64_t columns = std::min(kColumns, N - n);
    for (int64_t k = 0; k < K; ++k) {
      for (int64_t x = 0; x < columns; ++x) {
        const float value = b[k * ldb + n + x];
        clean[k * kColumns + x] = std::isfinite(value) ? value : 0.0f;
      }
    }
    product(M, columns, K, a, row_stride, k_stride, clean, kColumns, c + n, ldc, true);
    for (int64_t k = 0; k < K; ++k) {
      for (int64_t x = n; x < n + columns; ++x) {
        const float value = b[k * ldb + x];
        if (std::isfinite(value)) continue;
        for (int64_t m = 0; m < M; ++m) {
          if (sees(m, k)) c[m * ldc + x] += a[m * row_stride + k * k_stride] * value;
        }
      }
    }
  }
}

constexpr uint64_t kAll = ~uint64_t{0};

// Bits of the keys of tile t that a row sees, a dense mask aside. `words`: block.seen_words(t).
HWY_INLINE uint64_t unmasked_bits(const Block& block, int row, int64_t t, const uint64_t* words) {
  if (row >= block.rows) return 0;
  const int64_t first = t * kTile;
  uint64_t within = interval_bits(block.lo[row] - first, block.hi[row] - first);
  if (words != nullptr) within &= words[row];
  const Visibility& visible = block.problem->visible;
  return visible.key_bits.empty()
             ? within
             : within & visible.key_bits[block.batch * block.problem->tiles() + t];
}

// The keys of tile t where every row of a block sees all of them, a dense mask aside; else 0.
HWY_INLINE uint64_t seen_by_all(const Block& block, int64_t t) {
  const int64_t first = t * kTile, end = std::min(first + kTile, block.problem->keys);
  const bool all = block.all_from <= first && block.all_to >= end;
  return all && block.problem->visible.key_bits.empty() && block.seen_words(t) == nullptr
             ? interval_bits(0, end - first)
             : 0;
}

// What the rows of a group see of a tile: `any` of them, `all` of them, the columns that matter, and
// whether all see all of those.
struct GroupSight {
  uint64_t visible[kGroup];
  uint64_t any, all;
  bool whole;
  bool beyond = false;  // MaskSight::kBeyond

  GroupSight() = default;
  // `common`: as of seen_by_all(). With `reference`, rows that saw nothing and rows past the block's last
  // see nothing; without, the latter do not count in `all`.
  HWY_INLINE GroupSight(const Block& block, int group, int64_t t, const float* reference,
                        uint64_t common) {
    const bool masked = block.problem->visible.mask.given();
    const bool classed = !block.problem->visible.classes.empty();
    if (common != 0) {
      std::fill_n(visible, kGroup, common);
      any = all = common;
      whole = (~all & interval_bits(0, end())) == 0;
      if (!masked && !classed) return;
    } else {
      any = 0;
      const uint64_t* words = block.seen_words(t);
      for (int r = 0; r < kGroup; ++r) {
        const bool blind = reference != nullptr && reference[group + r] == -HUGE_VALF;
        visible[r] = blind ? 0 : unmasked_bits(block, group + r, t, words);
        any |= visible[r];
      }
    }
    if (masked && any != 0) {
      const MaskSight mask = see_mask(block, group, t, visible);
      if (common != 0 && mask == MaskSight::kShowsAll && !classed) return;
      beyond = mask == MaskSight::kBeyond;
    }
    if (classed && any != 0) see_classes(block, group, t, visible);
    any = 0;
    all = kAll;
    for (int r = 0; r < kGroup; ++r) {
      any |= visible[r];
      if (reference != nullptr || group + r < block.rows) all &= visible[r];
    }
    whole = any != 0 && (~all & interval_bits(first(), end())) == 0;
  }
  // [first, end) columns hold every visible key; multiples of a vector. [key, last) begin and end with one.
  HWY_INLINE int64_t key() const {
    return static_cast<int64_t>(hwy::Num0BitsBelowLS1Bit_Nonzero64(any));
  }
  HWY_INLINE int64_t first() const { return key() / kN * kN; }
  HWY_INLINE int64_t last() const {
    return kTile - static_cast<int64_t>(hwy::Num0BitsAboveMS1Bit_Nonzero64(any));
  }
  HWY_INLINE int64_t end() const { return (last() + kN - 1) / kN * kN; }
};

// Calls f(first row, end row, sight) for runs of the groups of `rows` rows: groups that see the same keys,
// so that one product serves them, or, unless `joins`, each group.
template <typename F>
HWY_INLINE void for_each_run(const GroupSight* sights, int rows, bool joins, const F& f) {
  for (int row = 0; row < rows;) {
    const GroupSight& sight = sights[row / kGroup];
    int end = row + kGroup;
    while (joins && end < rows && sights[end / kGroup].any == sight.any) end += kGroup;
    end = std::min(end, rows);
    f(row, end, sight);
    row = end;
  }
}

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
