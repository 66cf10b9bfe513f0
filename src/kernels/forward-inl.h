// The forward pass of a block over tiles, for the SIMD target that includes this.
#if defined(RELPOS_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RELPOS_FORWARD_INL_H_
#undef RELPOS_FORWARD_INL_H_
#else
#define RELPOS_FORWARD_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "kernels/terms-inl.h"

HWY_BEFORE_NAMESPACE();
namespace relpos {
namespace HWY_NAMESPACE {
namespace {

// A row keeps its reference exponent until a score passes it by this much: weights stay below 2^60
// and sums below 2^77, far inside float32, and almost no tile rescales.
constexpr float kSlack = 60.0f;
constexpr float kNothing = -HUGE_VALF;

// Moves a row's reference to the top of these scores and rescales what it has summed, and the weights
// of the tile's `before` columns to the left. False: the row has seen nothing yet.
HWY_INLINE bool move_reference(Block& block, int row, float* scores, int64_t n, int64_t before) {
  const F d;
  const float old = block.m[row];
  V top = hn::Set(d, kNothing);
  for (int64_t c = 0; c < n; c += kN) {
    const V s = hn::Load(d, scores + c);
    if (!hn::AllTrue(d, hn::Eq(s, s))) {  // the row becomes NaN whatever its reference is
      if (old == kNothing) block.m[row] = 0.0f;
      return true;
    }
    top = hn::Max(top, s);
  }
  const float highest = hn::GetLane(hn::MaxOfLanes(d, top));
  if (highest == kNothing) return old != kNothing;
  if (old != kNothing && highest <= old + kSlack) return true;
  block.m[row] = highest;
  if (old == kNothing) return true;
  const Rescaling rescaled(highest - old);
  const auto rescale = [&](float* x, int64_t count) HWY_ATTR {
    int64_t c = 0;
    for (; c + kN <= count; c += kN) hn::StoreU(rescaled(hn::LoadU(d, x + c)), d, x + c);
    for (; c < count; ++c) x[c] = hn::GetLane(rescaled(hn::Set(d, x[c])));
  };
  rescale(scores - before, before);
  rescale(block.l + row * kLanes, kLanes);
  rescale(block.o + row * block.Dvp, block.Dvp);
  for (Panel& panel : block.values) {
    if (panel.gradient[row] != nullptr) rescale(panel.gradient[row], panel.width + 2 * kPad);
  }
  return true;
}

// Scores -> weights of one strip, and the rows' partial sums.
struct Softmax {
  Block& block;
  const Additions& additions;
  const GroupSight& sight;
  int group;
  int64_t first, n;  // columns: of the first strip, of this one
  float* p;          // [kGroup, kTile], at column n

  template <int R, int kVectors>
  HWY_INLINE void operator()(V (&s)[R][kVectors]) const {
    const F d;
    additions.add_to(s, n);
    hide(s, sight, n, kNothing);
    float* m = block.m + group;
    bool set = true;
    V top = hn::Set(d, kNothing);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      if (HWY_UNLIKELY(m[r] == kNothing)) m[r] = highest(s[r]);
      set = set && m[r] != kNothing;
      const V reference = hn::Set(d, m[r]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) top = hn::Max(hn::Sub(s[r][v], reference), top);
    }
    if (HWY_UNLIKELY(!set || !hn::AllTrue(d, hn::Le(top, hn::Set(d, kSlack))))) {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) hn::Store(s[r][v], d, p + r * kTile + v * kN);
      }
      settle(R, kVectors * kN);
      return;
    }
    // Strips take turns with the lanes of l, so that a chain is as short for narrow vectors.
    float* l = block.l + group * kLanes + n / kVectors % kLanes / kN * kN;
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const V reference = hn::Set(d, m[r]);
      V sum = hn::Zero(d);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        const V weight = exp2(hn::Sub(s[r][v], reference));
        sum = v == 0 ? weight : hn::Add(sum, weight);
        hn::Store(weight, d, p + r * kTile + v * kN);
      }
      hn::Store(hn::Add(hn::Load(d, l + r * kLanes), sum), d, l + r * kLanes);
    }
  }

 private:
  template <int kVectors>
  static HWY_INLINE float highest(const V (&s)[kVectors]) {
    V top = s[0];
    for (int v = 1; v < kVectors; ++v) top = hn::Max(s[v], top);
    const float value = hn::GetLane(hn::MaxOfLanes(F(), top));
    return value == value ? value : 0.0f;  // NaN: the row becomes that whatever its reference is
  }

  // The same from scores in p, where a reference must move first.
  HWY_NOINLINE void settle(int rows, int64_t columns) const {
    const F d;
    for (int r = 0; r < rows; ++r) {
      float* x = p + r * kTile;
      if (!move_reference(block, group + r, x, columns, n - first)) {
        clear(x, columns);
        continue;
      }
      const V reference = hn::Set(d, block.m[group + r]);
      for (int64_t c = 0; c < columns; c += kN) {
        const V weight = exp2(hn::Sub(hn::Load(d, x + c), reference));
        float* sums = block.l + (group + r) * kLanes + c % kLanes;
        hn::Store(hn::Add(hn::Load(d, sums), weight), d, sums);
        hn::Store(weight, d, x + c);
      }
    }
  }
};

// Calls f with the fewest rows of a register tile that hold `rows`.
template <typename Function>
HWY_INLINE void for_rows(int rows, const Function& f) {
  if (rows <= 2) {
    f(std::integral_constant<int, 2>());
  } else if (rows <= 4) {
    f(std::integral_constant<int, 4>());
  } else {
    f(std::integral_constant<int, kGroup>());
  }
}

// Weights of all groups first, then their products with the values: the tile's keys stay in the
// nearest cache while the block's queries pass, then its values.
void forward(Block& block, const KeyTile* tiles, int64_t first, int64_t count) {
  HWY_ALIGN_MAX float p[kRows * kTile];
  GroupSight sights[kRows / kGroup];
  const int groups = (block.rows + kGroup - 1) / kGroup;
  const bool drops = block.problem->dropout.active(), values = !block.values.empty();
  for (int64_t t = first; t < first + count; ++t) {
    const KeyTile& tile = tiles[t - first];
    const TileView view(block, tile, t);
    for (int group = 0; group < block.rows; group += kGroup) {
      if (t + 1 < first + count) {
        const KeyTile& next = tiles[t + 1 - first];
        prefetch_part(next.kt, block.D * kTile, group / kGroup, groups);
        prefetch_part(next.v, block.Dvp * kTile, group / kGroup, groups);
      }
      const GroupSight& sight = sights[group / kGroup] = GroupSight(block, group, t, nullptr);
      if (sight.any == 0) continue;
      float* weights = p + group * kTile;
      const int64_t from = sight.first(), end = sight.end();
      const Additions additions(view, block.scores, group, true);
      const int rows = std::min(kGroup, block.rows - group);
      for_rows(rows, [&](auto most) HWY_ATTR {
        row_strip<decltype(most)::value>(
            from, end, block.D, block.q + group * block.Dp, block.Dp, 1, tile.kt, kTile, weights,
            kTile, false, [&](int64_t n) HWY_ATTR {
              return Softmax{block, additions, sight, group, from, n, weights + n};
            });
      });
      if (!drops && !values) continue;
      clear_outside(weights, from, end);
      for (int row = group; row < group + rows; ++row) {
        if (drops) {
          HWY_ALIGN_MAX float factors[kTile];
          dropout_factors(block, row, t, factors);
          multiply(p + row * kTile, factors);
        }
        add_to_gradients(view, block.values, row, p + row * kTile);
      }
    }
    for (int group = 0; group < block.rows; group += kGroup) {
      const GroupSight& sight = sights[group / kGroup];
      if (sight.any == 0) continue;
      const int64_t from = sight.first(), last = sight.last();
      float* weights = p + group * kTile;
      float* o = block.o + group * block.Dvp;
      if (sight.all != kAll && !tile.v_finite) {
        guarded_gemm(gemm, std::min(kGroup, block.rows - group), block.Dvp, last - from,
                     weights + from, kTile, 1, tile.v + from * block.Dvp, block.Dvp, o, block.Dvp,
                     {sight.visible, from, false});
      } else {
        gemm(std::min(kGroup, block.rows - group), block.Dvp, last - from, weights + from, kTile, 1,
             tile.v + from * block.Dvp, block.Dvp, o, block.Dvp, true);
      }
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace relpos
HWY_AFTER_NAMESPACE();

#endif
