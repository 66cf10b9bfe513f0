// The backward pass of a block over tiles, for the SIMD target that includes this.
#if defined(RELPOS_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RELPOS_BACKWARD_INL_H_
#undef RELPOS_BACKWARD_INL_H_
#else
#define RELPOS_BACKWARD_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <type_traits>
#include <vector>

#include "kernels/rows.h"
#include "kernels/simd/dropout-inl.h"
#include "kernels/simd/sight-inl.h"
#include "kernels/simd/term-gradients-inl.h"
#include "kernels/simd/terms-inl.h"

HWY_BEFORE_NAMESPACE();
namespace relpos {
namespace HWY_NAMESPACE {
namespace {

// What the strips of a group in a tile make weights of. p and slopes are [kGroup, kTile], those of the
// rows the group's.
struct WeightStrips {
  const GroupSight& sight;
  const Additions& additions;
  const CapAndMask& cap;
  const float* reference;
  const float* inverse;
  float* p;
  float* slopes;  // of the softcap; null: not wanted
  bool bounded;   // as of BackwardState
};

// What they make gradients of scores of, from those of weights, likewise.
struct GradientStrips {
  const GroupSight& sight;
  const Additions& additions;
  const float* delta;
  const float* factors;  // of dropout; null: there is none
  const float* p;
  float* ds;
};

// Scores -> weights of one strip, before dropout; kNarrow: of those that will be rounded to bfloat16,
// divided by the sums of their rows.
template <bool kNarrow>
struct Weights {
  using Exp2 = std::conditional_t<kNarrow, ShortExp2, FullExp2>;
  const WeightStrips& of;
  int64_t n;    // the strip's first column
  int row = 0;  // of the group, its first

  template <int R, int kVectors>
  HWY_INLINE void operator()(V (&s)[R][kVectors]) const {
    const F d;
    of.additions.add_to(s, n, row);
    of.cap.apply(s, n, of.slopes, row);
    RELPOS_UNROLLED(r, R) {
      const V top = hn::Set(d, of.reference[row + r]);
      RELPOS_UNROLLED(v, kVectors) s[r][v] = hn::Sub(s[r][v], top);
      if (of.bounded) {  // a NaN stays
        const V most = hn::Set(d, 127.0f);
        RELPOS_UNROLLED(v, kVectors) {
          s[r][v] = hn::IfThenElse(hn::Gt(s[r][v], most), most, s[r][v]);
        }
      }
      RELPOS_UNROLLED(v, kVectors) s[r][v] = Exp2()(s[r][v]);
      if constexpr (kNarrow) {
        const V inverse = hn::Set(d, of.inverse[row + r]);
        RELPOS_UNROLLED(v, kVectors) s[r][v] = hn::Mul(s[r][v], inverse);
      }
    }
    hide(s, of.sight, n, 0.0f, row);
    Store{of.p + row * kTile + n, kTile}(s);
  }
};

// dweight -> dscore of one strip.
struct ScoreGradients {
  const GradientStrips& of;
  int64_t n;
  int row = 0;

  template <int R, int kVectors>
  HWY_INLINE void operator()(V (&dp)[R][kVectors]) const {
    const F d;
    of.additions.add_to(dp, n, row);
    RELPOS_UNROLLED(r, R) {
      const V mean = hn::Set(d, of.delta[row + r]);
      RELPOS_UNROLLED(v, kVectors) {
        const int64_t at = (row + r) * kTile + n + v * kN;
        if (of.factors != nullptr) dp[r][v] = hn::Mul(dp[r][v], hn::Load(d, of.factors + at));
        dp[r][v] = hn::Mul(hn::Load(d, of.p + at), hn::Sub(dp[r][v], mean));
      }
    }
    hide(dp, of.sight, n, 0.0f, row);
    Store{of.ds + row * kTile + n, kTile}(dp);
  }
};

HWY_INLINE void add_ramp_gradients(const TileView& view, Block& block, int row, uint64_t visible,
                                   const float* ds) {
  for (Ramp& ramp : block.ramps) {
    for (int64_t c = 0; c < kTile; ++c) {
      if (((visible >> c) & 1U) == 0) continue;
      // Distances less the row's shift: what that leaves out, finish_biases() adds.
      const int64_t delta = view.distance(row, c);
      (delta < 0 ? ramp.past_sum[row] : ramp.future_sum[row]) +=
          static_cast<double>(ds[c]) * static_cast<double>(delta - block.shift[row]);
    }
  }
}

// Adds ds[kTile], 0 where hidden, to the gradient of the mask.
HWY_INLINE void add_mask_gradient(const TileView& view, const Block& block,
                                  const BackwardState& state, int row, const float* ds) {
  const int64_t first = view.t * kTile, keys = std::min(kTile, block.problem->keys - first);
  if (state.mask_rows != nullptr) {
    store_row(*state.mask_rows, block.batch, block.head[row], block.index[row], keys, ds, first);
    return;
  }
  if (state.mask_gradient == nullptr) return;
  const int64_t stride = state.mask_index->strides[3];
  double* to = state.mask_gradient->data() +
               state.mask_index->offset({block.batch, block.head[row], block.index[row], first});
  if (stride == 1) {
    for (int64_t c = 0; c < keys; ++c) to[c] += static_cast<double>(ds[c]);
    return;
  }
  for (int64_t c = 0; c < keys; ++c) to[c * stride] += static_cast<double>(ds[c]);
}

// The gradient of the mask of one row, from its dscore, which a softcap's slopes then multiply; and, with
// dropout, p becomes what v met.
HWY_INLINE void finish_row(const TileView& view, Block& block, const BackwardState& state, int row,
                           uint64_t visible, const float* factors, const float* slopes, float* p,
                           float* ds) {
  if (factors != nullptr) multiply(p, factors);
  add_mask_gradient(view, block, state, row, ds);
  if (slopes == nullptr) return;
  const F d;
  for (int64_t c = 0; c < kTile; c += kN) {  // a hidden slope may be NaN
    const V product = hn::Mul(hn::Load(d, ds + c), hn::Load(d, slopes + c));
    hn::Store(hn::IfThenElseZero(lanes_of(visible, c), product), d, ds + c);
  }
}

// dv += p^T dout and dk += ds^T q, for the rows that see each strip of keys.
HWY_INLINE void key_gradients(const Block& block, const BackwardState& state, int64_t t, int groups,
                              const uint64_t* group_any, const uint64_t* visible, bool block_all) {
  float* dv = state.dv + t * kTile * block.Dvp;
  float* dk = state.dk + t * kTile * block.Dp;
  constexpr int64_t kStrip = 2 * kGroup;
  for (int64_t key = 0; key < kTile;) {
    int64_t keys = std::min(block_all ? kTile : kStrip, kTile - key);
    const uint64_t bits = (keys == kTile ? kAll : (uint64_t{1} << keys) - 1) << key;
    int begin = 0, end = groups;
    while (begin < end && (group_any[begin] & bits) == 0) ++begin;
    while (end > begin && (group_any[end - 1] & bits) == 0) --end;
    const int64_t from = begin * kGroup, rows = (end - begin) * kGroup;
    if (rows > 0 && (block_all || state.rows_finite)) {
      gemm(keys, block.Dvp, rows, state.p + from * kTile + key, 1, kTile,
           state.dout + from * block.Dvp, block.Dvp, dv + key * block.Dvp, block.Dvp, true);
      gemm(keys, block.Dp, rows, state.ds + from * kTile + key, 1, kTile, block.q + from * block.Dp,
           block.Dp, dk + key * block.Dp, block.Dp, true);
    } else if (rows > 0) {
      const Seen seen{visible + from, key, true};
      guarded_gemm(gemm, keys, block.Dvp, rows, state.p + from * kTile + key, 1, kTile,
                   state.dout + from * block.Dvp, block.Dvp, dv + key * block.Dvp, block.Dvp, seen);
      guarded_gemm(gemm, keys, block.Dp, rows, state.ds + from * kTile + key, 1, kTile,
                   block.q + from * block.Dp, block.Dp, dk + key * block.Dp, block.Dp, seen);
    }
    key += keys;
  }
}

// Adds the dscores of a block's rows to the gradient of the keys' biases.
void add_key_bias_gradients(const Block& block, const BackwardState& state, int64_t t) {
  if (state.key_bias == nullptr) return;
  const F d;
  float* to = state.key_bias + t * kTile;
  for (int64_t c = 0; c < kTile; c += kN) {
    V sum = hn::Load(d, to + c);
    for (int row = 0; row < block.rows; ++row) {
      sum = hn::Add(sum, hn::Load(d, state.ds + row * kTile + c));
    }
    hn::Store(sum, d, to + c);
  }
}

// Whether the rows of a group change after their strips, or masks take their gradients.
HWY_INLINE bool finishes_rows(const Block& block, const BackwardState& state) {
  return block.problem->dropout.active() || state.mask_gradient != nullptr ||
         state.mask_rows != nullptr || block.problem->softcap != 0.0;
}

// The panels that add to the gradients of weights.
HWY_INLINE const std::vector<Panel>& value_reads(const Block& block) {
  static const std::vector<Panel> none;
  for (const Panel& panel : block.values) {
    if (panel.cells != nullptr) return block.values;
  }
  return none;
}

// p and ds of the rows of a group that see a tile, and the gradients of their terms. `products` gives
// the products of queries and keys to Weights, and those of dout and values to ScoreGradients.
template <typename Products>
HWY_INLINE void weigh_gradients_of_group(const TileView& view, Block& block, BackwardState& state,
                                         int group, const GroupSight& sight,
                                         const std::vector<Panel>& reads, bool by_row,
                                         const Products& products) {
  const int64_t from = sight.first(), end = sight.end();
  const int rows = std::min(kGroup, block.rows - group);
  float *p = state.p + group * kTile, *ds = state.ds + group * kTile;
  HWY_ALIGN_MAX float factors[kGroup * kTile], slopes[kGroup * kTile];
  const CapAndMask cap(view, group, sight.beyond);
  if (cap.active()) clear_outside(slopes, from, end);
  const float* dropout = block.problem->dropout.active() ? factors : nullptr;
  clear_outside(p, from, end);
  clear_outside(ds, from, end);
  for (int r = 0; dropout != nullptr && r < rows; ++r) {
    dropout_factors(block, group + r, view.t, factors + r * kTile);
  }
  {
    const Additions to_scores(view, block.scores, group, true);
    const Additions to_weights(view, reads, group, false);
    products(WeightStrips{sight, to_scores, cap, state.reference + group, state.inverse + group, p,
                          cap.active() ? slopes : nullptr, state.bounded},
             GradientStrips{sight, to_weights, state.delta + group, dropout, p, ds});
  }
  for (int r = 0; by_row && r < rows; ++r) {
    finish_row(view, block, state, group + r, sight.visible[r],
               dropout == nullptr ? nullptr : dropout + r * kTile,
               cap.active() ? slopes + r * kTile : nullptr, p + r * kTile, ds + r * kTile);
  }
  add_to_gradients(view, block.scores, group, rows, ds);
  add_to_gradients(view, block.values, group, rows, p);
  for (int r = 0; !block.ramps.empty() && r < rows; ++r) {
    add_ramp_gradients(view, block, group + r, sight.visible[r], ds + r * kTile);
  }
}

// Of products that a unit has left in p, to be scaled, and in ds.
HWY_INLINE void weigh_loaded(float scale, int64_t from, int64_t end, const WeightStrips& weights,
                             const GradientStrips& gradients) {
  using Narrow = Weights<true>;
  if (end - from == kTile) {
    for_whole_rows([&](int row, int64_t n) HWY_ATTR {
      V products[kAtOnce][kWide];
      load_products(scale, weights.p + row * kTile + n, products);
      Narrow{weights, n, row}(products);
      load_products(1.0f, gradients.ds + row * kTile + n, products);
      ScoreGradients{gradients, n, row}(products);
    });
    return;
  }
  loaded_strip<kGroup>(from, end, scale, weights.p,
                       [&](int64_t n) HWY_ATTR { return Narrow{weights, n}; });
  loaded_strip<kGroup>(from, end, 1.0f, gradients.ds,
                       [&](int64_t n) HWY_ATTR { return ScoreGradients{gradients, n}; });
}

// p, ds and dq of the rows of a group that see a tile, and the gradients of their terms.
HWY_INLINE void backward_group(const TileView& view, Block& block, BackwardState& state, int group,
                               const GroupSight& sight, const std::vector<Panel>& reads,
                               bool by_row) {
  const KeyTile& tile = view.tile;
  const int64_t from = sight.first(), last = sight.last(), end = sight.end();
  const float *q = block.q + group * block.Dp, *dout = state.dout + group * block.Dvp;
  weigh_gradients_of_group(
      view, block, state, group, sight, reads, by_row,
      [&](const WeightStrips& weights, const GradientStrips& gradients) HWY_ATTR {
        row_strip<kGroup>(from, end, block.D, q, block.Dp, 1, tile.kt, kTile, weights.p, kTile,
                          false, [&](int64_t n) HWY_ATTR { return Weights<false>{weights, n}; });
        row_strip<kGroup>(from, end, block.Dv, dout, block.Dvp, 1, tile.vt, kTile, gradients.ds,
                          kTile, false,
                          [&](int64_t n) HWY_ATTR { return ScoreGradients{gradients, n}; });
      });
  block.prefetch_mask(group, group + kGroup, view.t + 1);
  const float* ds = state.ds + group * kTile;
  float* dq = state.dq + group * block.Dp;
  const float* k = tile.k + from * block.Dp;
  if (!sight.whole && !tile.k_finite) {
    guarded_gemm(gemm, kGroup, block.Dp, last - from, ds + from, kTile, 1, k, block.Dp, dq,
                 block.Dp, {sight.visible, from, false});
  } else {
    gemm(kGroup, block.Dp, last - from, ds + from, kTile, 1, k, block.Dp, dq, block.Dp, true);
  }
}

void backward(Block& block, BackwardState& state, const KeyTile& tile, int64_t t,
              const KeyTile* next) {
  const int groups = (block.rows + kGroup - 1) / kGroup;
  const std::vector<Panel>& reads = value_reads(block);
  const bool by_row = finishes_rows(block, state);
  uint64_t visible[kRows], group_any[kRows / kGroup];
  const TileView view(block, tile, t);
  uint64_t block_all = kAll, block_any = 0;
  const uint64_t common = state.all_weigh ? seen_by_all(block, t) : 0;
  for (int g = 0; g < groups; ++g) {
    if (next != nullptr) {
      prefetch_part(next->kt, block.D * kTile, g, groups);
      prefetch_part(next->vt, block.Dv * kTile, g, groups);
      prefetch_part(next->k, block.Dp * kTile, g, groups);
      prefetch_part(state.dk + (t + 1) * kTile * block.Dp, block.Dp * kTile, g, groups);
      prefetch_part(state.dv + (t + 1) * kTile * block.Dvp, block.Dvp * kTile, g, groups);
    }
    const GroupSight sight(block, g * kGroup, t, state.reference, common);
    std::copy_n(sight.visible, kGroup, visible + g * kGroup);
    group_any[g] = sight.any;
    block_all &= sight.all;
    block_any |= sight.any;
    if (sight.any == 0) {
      clear(state.p + g * kGroup * kTile, kGroup * kTile);
      clear(state.ds + g * kGroup * kTile, kGroup * kTile);
      continue;
    }
    backward_group(view, block, state, g * kGroup, sight, reads, by_row);
  }
  if (block_any == 0 || !state.take_turn(state.sums, t)) return;
  key_gradients(block, state, t, groups, group_any, visible, block_all == kAll);
  add_key_bias_gradients(block, state, t);
}

// Products of rows [first, last) in state.p and state.ds -> weights after dropout and dscores, and
// the gradients of terms.
void weigh_gradients(Block& block, BackwardState& state, const KeyTile& tile, int64_t t, int first,
                     int last) {
  const TileView view(block, tile, t);
  const std::vector<Panel>& reads = value_reads(block);
  const bool by_row = finishes_rows(block, state);
  const uint64_t common = state.all_weigh ? seen_by_all(block, t) : 0;
  for (int group = first; group < last; group += kGroup) {
    block.prefetch_mask(group, group + kGroup, t + 1);
    const GroupSight sight(block, group, t, state.reference, common);
    if (sight.any == 0) {
      clear(state.p + group * kTile, kGroup * kTile);
      clear(state.ds + group * kTile, kGroup * kTile);
      continue;
    }
    weigh_gradients_of_group(
        view, block, state, group, sight, reads, by_row,
        [&](const WeightStrips& weights, const GradientStrips& gradients) HWY_ATTR {
          weigh_loaded(block.score_scale, sight.first(), sight.end(), weights, gradients);
        });
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace relpos
HWY_AFTER_NAMESPACE();

#endif
