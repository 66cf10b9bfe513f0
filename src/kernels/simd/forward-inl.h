// The forward pass of a block over tiles, for the SIMD target that includes this.
#if defined(RELPOS_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RELPOS_FORWARD_INL_H_
#undef RELPOS_FORWARD_INL_H_
#else
#define RELPOS_FORWARD_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <type_traits>

#include "kernels/simd/dropout-inl.h"
#include "kernels/simd/sight-inl.h"
#include "kernels/simd/term-gradients-inl.h"
#include "kernels/simd/terms-inl.h"

HWY_BEFORE_NAMESPACE();
namespace relpos {
namespace HWY_NAMESPACE {
namespace {

// A row keeps its reference exponent until a score passes it by this much: weights stay below 2^60
// and sums below 2^77, far inside float32, and almost no tile rescales.
constexpr float kSlack = 60.0f;
constexpr float kNothing = -HUGE_VALF;

// -inf of scores that are all hidden, where Highway's emulation says the lowest finite number.
HWY_INLINE float highest_lane(V scores) {
  const F d;
  const float highest = hn::GetLane(hn::MaxOfLanes(d, scores));
  if (HWY_LIKELY(highest > -FLT_MAX)) return highest;
  return hn::AllTrue(d, hn::Eq(scores, hn::Set(d, kNothing))) ? kNothing : highest;
}

// Moves a row's reference to the top of these scores and rescales what it has summed, and the weights
// of the tile's `before` columns to the left. False: the row has seen nothing yet.
HWY_INLINE bool move_reference(const Block& block, ForwardState& state, int row, float* scores,
                               int64_t n, int64_t before) {
  const F d;
  const float old = state.m[row];
  V top = hn::Set(d, kNothing);
  for (int64_t c = 0; c < n; c += kN) {
    const V s = hn::Load(d, scores + c);
    if (!hn::AllTrue(d, hn::Eq(s, s))) {  // the row becomes NaN whatever its reference is
      if (old == kNothing) state.m[row] = 0.0f;
      return true;
    }
    top = hn::Max(top, s);
  }
  const float highest = highest_lane(top);
  if (highest == kNothing) return old != kNothing;
  if (old != kNothing && highest <= old + kSlack) return true;
  state.m[row] = highest;
  if (old == kNothing) return true;
  const Rescaling rescaled(highest - old);
  const auto rescale = [&](float* x, int64_t count) HWY_ATTR {
    const int64_t whole = count / kN * kN;
    for (int64_t c = 0; c < whole; c += kN) hn::StoreU(rescaled(hn::LoadU(d, x + c)), d, x + c);
    for (int64_t c = whole; c < count; ++c) x[c] = hn::GetLane(rescaled(hn::Set(d, x[c])));
  };
  rescale(scores - before, before);
  rescale(state.l + row * kLanes, kLanes);
  rescale(state.o + row * block.Dvp, block.Dvp);
  for (const Panel& panel : block.values) {
    rescale(panel.row_gradient(row), panel.width + 2 * kPad);
    for (int64_t side = 0; side < 2 && panel.far_sums != nullptr; ++side) {
      rescale(panel.far_sums + (side * kRows + row) * kLanes, kLanes);
    }
  }
  return true;
}

// What takes the sums of the weights of a group's rows.
class WeightSums {
 public:
  HWY_INLINE WeightSums(const TileView& view, const ForwardState& state, int group)
      : of_panels_(view.sums[0] != nullptr),
        at_((of_panels_ ? view.sums[0] : state.l) + group * kLanes),
        second_(view.sums[1] == nullptr ? nullptr : view.sums[1] + group * kLanes) {}
  // Whether value panels take them: then these get nothing else of the tile, and `l` gets them at the
  // end, in ValueTables::add().
  HWY_INLINE bool of_panels() const { return of_panels_; }
  // Adds some of the weights of a row of the group, in lanes from `lane` on.
  HWY_INLINE void add(int row, int64_t lane, V sum) const {
    const F d;
    const int64_t at = row * kLanes + lane;
    hn::Store(hn::Add(hn::Load(d, at_ + at), sum), d, at_ + at);
    if (HWY_LIKELY(second_ == nullptr)) return;
    hn::Store(hn::Add(hn::Load(d, second_ + at), sum), d, second_ + at);
  }

 private:
  bool of_panels_;
  float *at_, *second_;
};

// How far the rows' scores are above their references, which are set: a lane at a time, the highest. May
// leave out a NaN, whose row becomes that whatever its reference is.
template <int R, int kVectors>
HWY_INLINE V highest_above(const V (&s)[R][kVectors], const float* m) {
  const F d;
  V top = hn::Set(d, kNothing);
  RELPOS_UNROLLED(r, R) {
    V highest_of_row = s[r][0];
    for (int v = 1; v < kVectors; ++v) highest_of_row = hn::Max(s[r][v], highest_of_row);
    top = hn::Max(hn::Sub(highest_of_row, hn::Set(d, m[r])), top);
  }
  return top;
}

// The sum of a row's weights, which its scores become.
template <typename Exp2, int kVectors>
HWY_INLINE V weigh_row(V (&s)[kVectors], float reference) {
  const F d;
  V sum = hn::Zero(d);
  RELPOS_UNROLLED(v, kVectors) {
    s[v] = Exp2()(hn::Sub(s[v], hn::Set(d, reference)));
    sum = v == 0 ? s[v] : hn::Add(sum, s[v]);
  }
  return sum;
}

// Scores -> weights of one strip, and the rows' partial sums.
template <typename Exp2 = FullExp2>
struct Softmax {
  const Block& block;
  ForwardState& state;
  const Additions& additions;
  const CapAndMask& cap;
  const GroupSight& sight;
  const WeightSums& sums;
  int group;
  int64_t first, n;  // columns: of the first strip, of this one
  float* p;          // [kGroup, kTile], at column n, from `row` on
  int row = 0;       // of the group, the strip's first

  template <int R, int kVectors>
  HWY_INLINE void operator()(V (&s)[R][kVectors]) const {
    const F d;
    additions.add_to(s, n, row);
    cap.apply(s, n, nullptr, row);
    hide(s, sight, n, kNothing, row);
    float* m = state.m + group + row;
    bool set = true;
    RELPOS_UNROLLED(r, R) {
      if (HWY_UNLIKELY(m[r] == kNothing)) m[r] = highest(s[r]);
      set = set && m[r] != kNothing;
    }
    if (HWY_UNLIKELY(!set || !hn::AllTrue(d, hn::Le(highest_above(s, m), hn::Set(d, kSlack))))) {
      RELPOS_UNROLLED(r, R) {
        RELPOS_UNROLLED(v, kVectors) hn::Store(s[r][v], d, p + r * kTile + v * kN);
      }
      settle(R, kVectors * kN);
      return;
    }
    RELPOS_UNROLLED(r, R) {
      const V sum = weigh_row<Exp2>(s[r], m[r]);
      RELPOS_UNROLLED(v, kVectors) hn::Store(s[r][v], d, p + r * kTile + v * kN);
      sums.add(row + r, lane(kVectors), sum);
    }
  }

 private:
  // Strips take turns with the lanes of l, so that a chain is as short for narrow vectors.
  HWY_INLINE int64_t lane(int64_t vectors) const { return n / vectors % kLanes / kN * kN; }

  template <int kVectors>
  static HWY_INLINE float highest(const V (&s)[kVectors]) {
    V top = s[0];
    for (int v = 1; v < kVectors; ++v) top = hn::Max(s[v], top);
    const float value = highest_lane(top);
    return value == value ? value : 0.0f;  // NaN: the row becomes that whatever its reference is
  }

  // The same from scores in p, where a reference must move first: for each row the same sums, for they
  // must not depend on what other rows of its group see.
  HWY_NOINLINE void settle(int rows, int64_t columns) const {
    const F d;
    for (int r = 0; r < rows; ++r) {
      float* x = p + r * kTile;
      if (!move_reference(block, state, group + row + r, x, columns, n - first)) {
        clear(x, columns);
        continue;
      }
      const V reference = hn::Set(d, state.m[group + row + r]);
      V sum = hn::Zero(d);
      for (int64_t c = 0; c < columns; c += kN) {
        const V weight = Exp2()(hn::Sub(hn::Load(d, x + c), reference));
        sum = c == 0 ? weight : hn::Add(sum, weight);
        hn::Store(weight, d, x + c);
      }
      sums.add(row + r, lane(columns / kN), sum);
    }
  }
};

// Calls f with the fewest rows of a register tile that hold `rows`.
template <typename Function>
HWY_INLINE void for_rows(int rows, const Function& f) {
  if (rows == 1) {
    f(std::integral_constant<int, 1>());
  } else if (rows == 2) {
    f(std::integral_constant<int, 2>());
  } else if (rows <= 4) {
    f(std::integral_constant<int, 4>());
  } else {
    f(std::integral_constant<int, kGroup>());
  }
}

// Weights of a group after dropout, and what they add to the value panels. `scores` gives the products
// of the columns that `sight` has, a strip at a time, to what `finish(first column, first row)` makes.
template <typename Exp2, bool kWholeGroups, typename Scores>
HWY_INLINE void weigh_group(const Block& block, ForwardState& state, const TileView& view,
                            int group, const GroupSight& sight, float* weights,
                            const Scores& scores) {
  const bool drops = block.problem->dropout.active();
  const int64_t from = sight.first(), end = sight.end();
  const Additions additions(view, block.scores, group, true);
  const CapAndMask cap(view, group, sight.beyond);
  const WeightSums sums(view, state, group);
  const int rows = std::min(kGroup, block.rows - group);
  const auto strips = [&](auto most) HWY_ATTR {
    scores(most, from, end, [&](int64_t n, int row = 0) HWY_ATTR {
      float* p = weights + row * kTile + n;
      return Softmax<Exp2>{block, state, additions, cap, sight, sums, group, from, n, p, row};
    });
  };
  if constexpr (kWholeGroups) {
    strips(std::integral_constant<int, kGroup>());
  } else {
    for_rows(rows, strips);
  }
  if (!drops && (block.values.empty() || sums.of_panels())) return;
  clear_outside(weights, from, end);
  for (int r = 0; drops && r < rows; ++r) {
    HWY_ALIGN_MAX float factors[kTile];
    dropout_factors(block, group + r, view.t, factors);
    multiply(weights + r * kTile, factors);
  }
  add_to_gradients(view, block.values, group, rows, weights, from, end);
}

// Weights of all groups first, then their products with the values: the tile's keys stay in the
// nearest cache while the block's queries pass, then its values.
void forward(Block& block, ForwardState& state, const KeyTile* tiles, int64_t first,
             int64_t count) {
  HWY_ALIGN_MAX float p[kRows * kTile];
  GroupSight sights[kRows / kGroup];
  const int groups = (block.rows + kGroup - 1) / kGroup;
  for (int64_t t = first; t < first + count; ++t) {
    const KeyTile& tile = tiles[t - first];
    const TileView view(block, tile, t);
    const uint64_t common = seen_by_all(block, t);
    for (int group = 0; group < block.rows; group += kGroup) {
      if (t + 1 < first + count) {
        const KeyTile& next = tiles[t + 1 - first];
        prefetch_part(next.kt, block.D * kTile, group / kGroup, groups);
        prefetch_part(next.v, block.Dvp * kTile, group / kGroup, groups);
      }
      const GroupSight& sight = sights[group / kGroup] =
          GroupSight(block, group, t, nullptr, common);
      if (sight.any == 0) continue;
      float* weights = p + group * kTile;
      weigh_group<FullExp2, false>(
          block, state, view, group, sight, weights,
          [&](auto rows, int64_t from, int64_t end, const auto& finish) HWY_ATTR {
            row_strip<decltype(rows)::value>(from, end, block.D, block.q + group * block.Dp,
                                             block.Dp, 1, tile.kt, kTile, weights, kTile, false,
                                             finish);
          });
    }
    // Masks and classes are fetched group by group, and a guarded product has one group's sight.
    const bool joins = tile.v_finite && !block.problem->visible.mask.given() && block.pairs.empty();
    for_each_run(
        sights, block.rows, joins, [&](int row, int end, const GroupSight& sight) HWY_ATTR {
          block.prefetch_pairs(row, end, t + 1);
          if (sight.any == 0) return;
          const int64_t from = sight.key(), keys = sight.last() - from;
          const float *weights = p + row * kTile + from, *v = tile.v + from * block.Dvp;
          float* o = state.o + row * block.Dvp;
          if (!sight.whole && !tile.v_finite) {
            guarded_gemm(gemm, end - row, block.Dvp, keys, weights, kTile, 1, v, block.Dvp, o,
                         block.Dvp, {sight.visible, from, false});
          } else {
            gemm(end - row, block.Dvp, keys, weights, kTile, 1, v, block.Dvp, o, block.Dvp, true);
          }
        });
  }
}

// Products of a block's rows, [kGroup, kTile] at a time -> weights after dropout.
// `loaded(rows, from, end, weights, finish)` reads a group's products.
template <typename Exp2, bool kWholeGroups, typename Groups, typename Loaded>
HWY_INLINE void weigh_rows(Block& block, ForwardState& state, const TileView& view,
                           const Groups& groups, const Loaded& loaded) {
  const uint64_t common = seen_by_all(block, view.t);
  for (int group = 0; group < block.rows; group += kGroup) {
    block.prefetch_pairs(group, group + kGroup, view.t + 1);
    const GroupSight sight(block, group, view.t, nullptr, common);
    groups(group, [&](float* weights) HWY_ATTR {
      if (sight.any == 0) {
        clear(weights, kGroup * kTile);
        return;
      }
      if (sight.any != kAll) clear_outside(weights, sight.first(), sight.end());
      weigh_group<Exp2, kWholeGroups>(block, state, view, group, sight, weights,
                                      [&](auto rows, int64_t from, int64_t end, const auto& finish)
                                          HWY_ATTR { loaded(rows, from, end, weights, finish); });
    });
  }
}

void weigh(Block& block, ForwardState& state, const KeyTile& tile, int64_t t, float* p) {
  weigh_rows<FullExp2, false>(
      block, state, TileView(block, tile, t),
      [&](int group, const auto& weigh) HWY_ATTR { weigh(p + group * kTile); },
      [](auto rows, int64_t from, int64_t end, float* weights, const auto& finish)
          HWY_ATTR { loaded_strip<decltype(rows)::value>(from, end, 1.0f, weights, finish); });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace relpos
HWY_AFTER_NAMESPACE();

#endif
