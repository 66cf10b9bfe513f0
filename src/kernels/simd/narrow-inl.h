// The softmax of a block over tiles whose products a unit computes, for the SIMD target that includes this.
#if defined(RELPOS_NARROW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RELPOS_NARROW_INL_H_
#undef RELPOS_NARROW_INL_H_
#else
#define RELPOS_NARROW_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <type_traits>
#include <vector>

#include "kernels/block/product_rows.h"
#include "kernels/simd/forward-inl.h"

HWY_BEFORE_NAMESPACE();
namespace relpos {
namespace HWY_NAMESPACE {
namespace {

// Whether a strip is a row, which store_rounded() can round: to two vectors' bfloat16, as
// MatrixUnit::narrow, on a CPU of which MatrixUnit::rounds_vectors is said.
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
constexpr bool kCanRound = kWide * kN == kTile;
HWY_INLINE void store_rounded(V first, V second, uint16_t* to) {
  __m512i both;
  asm("vcvtne2ps2bf16 %2, %1, %0" : "=v"(both) : "v"(second.raw), "v"(first.raw));
  _mm512_store_si512(to, both);
}
#else
constexpr bool kCanRound = false;
HWY_INLINE void store_rounded(V /*first*/, V /*second*/, uint16_t* /*to*/) {}
#endif

// ShortExp2 in fewer instructions, for a floating-point mode that flushes denormals: else a vector with one
// takes an Emerald Rapids 100 ns.
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
constexpr bool kCanScale = true;
struct ScaledExp2 {
  HWY_INLINE V operator()(V x) const {
    const V r{_mm512_reduce_ps(x.raw, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
    const V p = quartic(r, 0.693045155f, 0.241278556f, 0.0522453740f, 0.0134251544f);
    return V{_mm512_scalef_ps(p.raw, x.raw)};
  }
};
#else
constexpr bool kCanScale = false;
using ScaledExp2 = ShortExp2;
#endif

// Additions of nothing.
struct NoAdditions {
  HWY_INLINE NoAdditions(const TileView&, const std::vector<Panel>&, int, bool) {}
  template <int R, int kVectors>
  HWY_INLINE void add_plain(V (&)[R][kVectors], int64_t, int) const {}
};

// The softmax of a tile where all rows see all keys, and nothing but plain() additions changes scores and
// nothing weights: the same sums as Softmax, without asking for each group. kRounds: weights are rounded
// in registers.
template <typename Exp2, bool kAdds, bool kRounds>
class OpenSoftmax {
 public:
  HWY_INLINE OpenSoftmax(const Block& block, ForwardState& state, const TileView& view)
      : block_(block), state_(state), view_(view) {}

  HWY_INLINE void run(ProductRows& rows) const {
    ProductRows::Chunk chunk;
    for (int group = 0; group < block_.rows; group += kGroup) {
      const std::conditional_t<kAdds, Additions, NoAdditions> additions(view_, block_.scores, group,
                                                                        true);
      const int end = std::min(block_.rows, group + kGroup);
      for (int row = group; row < end; row += kAtOnce) {
        const int in_chunk = row % kUnitRows, next = row + kAtOnce;
        if (in_chunk == 0) chunk = rows.chunk(row);
        for (int64_t n = 0; n < kTile; n += kWide * kN) {
          const int64_t at = in_chunk * kTile + n;
          weigh(additions, row, n, chunk.products + at, chunk.rounded + at);
        }
        rows.between_rows();
        if (next % kUnitRows == 0 || next >= block_.rows) {
          rows.weighed_chunk(row - in_chunk, kRounds);
        }
      }
    }
  }

 private:
  template <typename Adds>
  HWY_INLINE void weigh(const Adds& additions, int row, int64_t n, float* p,
                        uint16_t* rounded) const {
    const F d;
    const int in_group = row % kGroup;
    V s[kAtOnce][kWide];
    load_products(block_.score_scale, p, s);
    additions.add_plain(s, n, in_group);
    const float* m = state_.m + row;
    if (HWY_UNLIKELY(!hn::AllTrue(d, hn::Le(highest_above(s, m), hn::Set(d, kSlack))))) {
      settle(row, n, p);
      if constexpr (kRounds) {
        load_products(1.0f, p, s);
        round(s, rounded);
      }
      return;
    }
    const WeightSums sums(view_, state_, row - in_group);
    RELPOS_UNROLLED(r, kAtOnce) {
      sums.add(in_group + r, n / kWide % kLanes / kN * kN, weigh_row<Exp2>(s[r], m[r]));
    }
    if constexpr (kRounds) {
      round(s, rounded);
    } else {
      Store{p, kTile}(s);
    }
  }

  static HWY_INLINE void round(const V (&weights)[kAtOnce][kWide], uint16_t* to) {
    RELPOS_UNROLLED(r, kAtOnce) {
      for (int v = 0; v < kWide; v += 2) {
        store_rounded(weights[r][v], weights[r][v + 1], to + r * kTile + v * kN);
      }
    }
  }

  // Where a reference must move.
  HWY_NOINLINE void settle(int row, int64_t n, float* p) const {
    const int in_group = row % kGroup, group = row - in_group;
    const Additions additions(view_, block_.scores, group, true);
    const CapAndMask cap(view_, group, false);
    const GroupSight sight(block_, group, view_.t, nullptr, kAll);
    const WeightSums sums(view_, state_, group);
    V s[kAtOnce][kWide];
    load_products(block_.score_scale, p, s);
    Softmax<Exp2>{block_, state_, additions, cap, sight, sums, group, 0, n, p, in_group}(s);
  }

  const Block& block_;
  ForwardState& state_;
  const TileView& view_;
};

HWY_INLINE bool has_references(const ForwardState& state) {
  const F d;
  const V nothing = hn::Set(d, kNothing);
  auto missing = hn::Eq(hn::Load(d, state.m), nothing);
  for (int64_t row = kN; row < kRows; row += kN) {
    missing = hn::Or(missing, hn::Eq(hn::Load(d, state.m + row), nothing));
  }
  return hn::AllFalse(d, missing);
}

// Whether that softmax serves a tile. All rows must have seen something: Softmax sets a row's reference,
// also where all of its scores are -inf.
HWY_INLINE bool is_open(const Block& block, const ForwardState& state, const TileView& view) {
  const Problem& problem = *block.problem;
  return seen_by_all(block, view.t) == kAll && has_references(state) &&
         !problem.visible.mask.given() && problem.visible.classes.empty() &&
         problem.softcap == 0.0 && !problem.dropout.active() &&
         (block.values.empty() || view.sums[0] != nullptr) && Additions::plain(block);
}

template <typename Exp2, bool kAdds>
HWY_INLINE void weigh_open(const Block& block, ForwardState& state, const TileView& view,
                           ProductRows& rows) {
  if (kCanRound && block.kernels->unit->rounds_vectors) {
    OpenSoftmax<Exp2, kAdds, kCanRound>(block, state, view).run(rows);
  } else {
    OpenSoftmax<Exp2, kAdds, false>(block, state, view).run(rows);
  }
}

template <typename Exp2>
void weigh_by(Block& block, ForwardState& state, const KeyTile& tile, int64_t t,
              ProductRows& rows) {
  const TileView view(block, tile, t);
  if (is_open(block, state, view)) {
    if (Additions::nothing(block)) {
      weigh_open<Exp2, false>(block, state, view, rows);
    } else {
      weigh_open<Exp2, true>(block, state, view, rows);
    }
    return;
  }
  const float scale = block.score_scale;
  weigh_rows<Exp2, true>(
      block, state, view,
      [&](int group, const auto& weigh) HWY_ATTR {
        weigh(rows.group(group));
        rows.weighed_group(group);
      },
      [&](auto count, int64_t from, int64_t end, float* weights, const auto& finish) HWY_ATTR {
        if (end - from == kTile) {
          for_whole_rows([&](int row, int64_t n) HWY_ATTR {
            V scores[kAtOnce][kWide];
            load_products(scale, weights + row * kTile + n, scores);
            finish(n, row)(scores);
          });
        } else {
          loaded_strip<decltype(count)::value>(from, end, scale, weights, finish);
        }
      });
}

void weigh_narrow(Block& block, ForwardState& state, const KeyTile& tile, int64_t t,
                  ProductRows& rows) {
  if (kCanScale && block.kernels->unit->scales_vectors) {
    weigh_by<ScaledExp2>(block, state, tile, t, rows);
  } else {
    weigh_by<ShortExp2>(block, state, tile, t, rows);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace relpos
HWY_AFTER_NAMESPACE();

#endif
