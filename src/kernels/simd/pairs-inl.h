// Cells that pairs look up by bytes of their own, and what they send back to them, for the SIMD target that
// includes this.
#if defined(RELPOS_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RELPOS_PAIRS_INL_H_
#undef RELPOS_PAIRS_INL_H_
#else
#define RELPOS_PAIRS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <type_traits>

#include "kernels/block/block.h"
#include "kernels/simd/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace relpos {
namespace HWY_NAMESPACE {
namespace {

using I = hn::Vec<hn::RebindToSigned<F>>;

// cells[at % (2 kN)] of 2 kN cells: the lanes of two vectors.
HWY_INLINE V look_up_in_two(const float* cells, I at) {
  const F d;
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  return V{_mm512_permutex2var_ps(hn::Load(d, cells).raw, at.raw, hn::Load(d, cells + kN).raw)};
#else
  const hn::RebindToSigned<F> di;
  const auto lane = hn::IndicesFromVec(d, hn::And(at, hn::Set(di, static_cast<int32_t>(kN - 1))));
  const auto first = hn::Eq(hn::And(at, hn::Set(di, static_cast<int32_t>(kN))), hn::Zero(di));
  return hn::IfThenElse(hn::RebindMask(d, first), hn::TableLookupLanes(hn::Load(d, cells), lane),
                        hn::TableLookupLanes(hn::Load(d, cells + kN), lane));
#endif
}

// The cells that a vector of bytes names. kTables: they are that many times 2 kN, at most; 0: any number.
template <int kTables>
HWY_INLINE V look_up(const uint8_t* bytes, const float* cells) {
  const F d;
  const hn::RebindToSigned<F> di;
  const hn::Rebind<uint8_t, F> d8;
  const I at = hn::PromoteTo(di, hn::LoadU(d8, bytes));
  if constexpr (kTables == 0) {
    return hn::GatherIndex(d, cells, at);
  } else {
    V found = look_up_in_two(cells, at);
    RELPOS_UNROLLED(n, kTables - 1) {
      const auto beyond = hn::Gt(at, hn::Set(di, static_cast<int32_t>((n + 1) * 2 * kN - 1)));
      found = hn::IfThenElse(hn::RebindMask(d, beyond),
                             look_up_in_two(cells + (n + 1) * 2 * kN, at), found);
    }
    return found;
  }
}

// Calls f with the number of tables of look_up() for a panel.
template <typename Function>
HWY_INLINE void for_tables(const PairPanel& panel, const Function& f) {
  if constexpr (kN >= 8) {  // else there are more tables than gathered cells
    if (panel.width <= 2 * kN) return f(std::integral_constant<int, 1>());
    if (panel.width <= 4 * kN) return f(std::integral_constant<int, 2>());
  }
  if constexpr (kN == 16) {  // one instruction looks a cell up in two vectors
    if (panel.width <= 8 * kN) return f(std::integral_constant<int, 4>());
    return f(std::integral_constant<int, 8>());
  }
  f(std::integral_constant<int, 0>());
}

// The bytes of a row and a tile; copied to own [kTile], zeros past the last key, where vectors cannot read
// them where they lie.
HWY_INLINE const uint8_t* pair_bytes(const Block& block, const PairPanel& panel, int row, int64_t t,
                                     uint8_t* own) {
  const int64_t keys = std::min(kTile, block.problem->keys - t * kTile);
  const uint8_t* bytes = panel.bytes(block.index[std::min(row, block.rows - 1)], t);
  if (panel.in_place(keys)) return bytes;
  for (int64_t c = 0; c < keys; ++c) own[c] = bytes[c * panel.key_stride];
  std::fill(own + keys, own + kTile, uint8_t{0});
  return own;
}

// Whether no bytes of a tile are copied.
HWY_INLINE bool reads_pairs_in_place(const Block& block, int64_t t) {
  const int64_t keys = std::min(kTile, block.problem->keys - t * kTile);
  for (const PairPanel& panel : block.pairs) {
    if (!panel.in_place(keys)) return false;
  }
  return true;
}

// sums[kTile] += the cells that a row looks up.
HWY_INLINE void add_pair_cells(const Block& block, const PairPanel& panel, int row, int64_t t,
                               float* sums) {
  const F d;
  alignas(64) uint8_t own[kTile];
  const uint8_t* bytes = pair_bytes(block, panel, row, t, own);
  const float* cells = panel.row_cells(row);
  for_tables(panel, [&](auto tables) HWY_ATTR {
    for (int64_t c = 0; c < kTile; c += kN) {
      const V cell = look_up<decltype(tables)::value>(bytes + c, cells);
      hn::Store(hn::Add(hn::Load(d, sums + c), cell), d, sums + c);
    }
  });
}

// sum += those of columns [c, c + kVectors * kN) of a group's rows from `row` on, in registers, where all
// panels of the block are read in place.
template <int R, int kVectors>
HWY_INLINE void add_pairs(const Block& block, int64_t t, V (&sum)[R][kVectors], int64_t c,
                          int row) {
  for (const PairPanel& panel : block.pairs) {
    const uint8_t* bytes[R];
    const float* cells[R];
    RELPOS_UNROLLED(r, R) {
      const int of = std::min(row + r, block.rows - 1);
      bytes[r] = panel.bytes(block.index[of], t) + c;
      cells[r] = panel.row_cells(of);
    }
    for_tables(panel, [&](auto tables) HWY_ATTR {
      RELPOS_UNROLLED(r, R) {
        RELPOS_UNROLLED(v, kVectors) {
          const V cell = look_up<decltype(tables)::value>(bytes[r] + v * kN, cells[r]);
          sum[r][v] = hn::Add(sum[r][v], cell);
        }
      }
    });
  }
}

// Adds x[kGroup, kTile] of a group's rows, 0 where hidden, into the gradient cells of their pairs. Each row
// sums the pairs of the tile in cells of its own first, so that no chain of sums is long; the rows in
// turns, since a sum waits for the one before it where neighbouring pairs are of one class.
HWY_INLINE void add_to_pairs(const Block& block, int group, int64_t t, const float* x) {
  const F d;
  for (const PairPanel& panel : block.pairs) {
    if (panel.gradient == nullptr) continue;
    const int64_t stride = panel.stride;
    HWY_ALIGN_MAX float sums[kGroup * kMostPairClasses];
    alignas(64) uint8_t own[kGroup][kTile];
    const uint8_t* bytes[kGroup];
    float* to[kGroup];
    RELPOS_UNROLLED(r, kGroup) {
      bytes[r] = pair_bytes(block, panel, group + r, t, own[r]);
      to[r] = sums + r * stride;
    }
    for (int64_t c = 0; c < kGroup * stride; c += kN) hn::Store(hn::Zero(d), d, sums + c);
    for (int64_t c = 0; c < kTile; ++c) {
      RELPOS_UNROLLED(r, kGroup) to[r][bytes[r][c]] += x[r * kTile + c];
    }
    float* gradient = panel.gradient + (panel.sums_rows ? 0 : group * stride);
    if (!panel.sums_rows) {
      for (int64_t c = 0; c < kGroup * stride; c += kN) {
        hn::Store(hn::Add(hn::LoadU(d, gradient + c), hn::Load(d, sums + c)), d, gradient + c);
      }
      continue;
    }
    for (int64_t c = 0; c < stride; c += kN) {
      V sum = hn::Load(d, gradient + c);
      RELPOS_UNROLLED(r, kGroup) sum = hn::Add(sum, hn::Load(d, sums + r * stride + c));
      hn::Store(sum, d, gradient + c);
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace relpos
HWY_AFTER_NAMESPACE();

#endif
