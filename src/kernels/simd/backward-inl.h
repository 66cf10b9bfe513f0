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
        const V apart = of.factors == nullptr
                            ? hn::Sub(dp[r][v], mean)
                            : hn::MulSub(dp[r][v], hn::Load(d, of.factors + at), mean);
        dp[r][v] = hn::Mul(hn::Load(d, of.p + at), apart);
      }
    }
    hide(dp, of.sight, n, 0.0f, row);
    Store{of.ds + row * kTile + n, kTile}(dp);
  }
};

// The gradient of the mask of one row, from its dscore, which a softcap's slopes then multiply; and, with
// dropout, p becomes what v met.
HWY_INLINE void finish_row(const Block& block, const BackwardState& state, int row, int64_t t,
                           uint64_t visible, const float* factors, const float* slopes, float* p,
                           float* ds) {
  if (factors != nullptr) multiply(p, factors);
  if (state.mask_rows != nullptr) store_mask_gradient(block, state, row, t, ds);
  if (slopes == nullptr) return;
  const F d;
  if (state.mask_ds != state.ds) std::copy_n(ds, kTile, state.mask_ds + row * kTile);
  for (int64_t c = 0; c < kTile; c += kN) {  // a hidden slope may be NaN
    const V product = hn::Mul(hn::Load(d, ds + c), hn::Load(d, slopes + c));
    hn::Store(hn::IfThenElseZero(lanes_of(visible, c), product), d, ds + c);
  }
}

// dv += p^T dout and dk += ds^T q, for each strip of keys and each run of the groups that see some of it.
HWY_INLINE void key_gradients(const Block& block, const BackwardState& state, int64_t t, int groups,
                              const GroupSight* sights, bool block_all) {
  float* dv = state.dv + t * kTile * block.Dvp;
  float* dk = state.dk + t * kTile * block.Dp;
  constexpr int64_t kStrip = 2 * kGroup;
  for (int64_t key = 0, end = 0; key < kTile;) {
    const int64_t keys = std::min(block_all ? kTile : kStrip, kTile - key);
    const uint64_t bits = (keys == kTile ? kAll : (uint64_t{1} << keys) - 1) << key;
    const auto sees = [&](int64_t g) HWY_ATTR { return g < groups && (sights[g].any & bits) != 0; };
    int64_t begin = end;
    while (begin < groups && !sees(begin)) ++begin;
    if (begin == groups) {
      key += keys;
      end = 0;
      continue;
    }
    end = begin + 1;
    while (sees(end)) ++end;
    const int64_t from = begin * kGroup, rows = (end - begin) * kGroup;
    if (block_all || state.rows_finite) {
      gemm(keys, block.Dvp, rows, state.p + from * kTile + key, 1, kTile,
           state.dout + from * block.Dvp, block.Dvp, dv + key * block.Dvp, block.Dvp, true);
      gemm(keys, block.Dp, rows, state.ds + from * kTile + key, 1, kTile, block.q + from * block.Dp,
           block.Dp, dk + key * block.Dp, block.Dp, true);
    } else {
      uint64_t visible[kRows];
      for (int64_t g = begin; g < end; ++g) {
        std::copy_n(sights[g].visible, kGroup, visible + (g - begin) * kGroup);
      }
      const Seen seen{visible, key, true};
      guarded_gemm(gemm, keys, block.Dvp, rows, state.p + from * kTile + key, 1, kTile,
                   state.dout + from * block.Dvp, block.Dvp, dv + key * block.Dvp, block.Dvp, seen);
      guarded_gemm(gemm, keys, block.Dp, rows, state.ds + from * kTile + key, 1, kTile,
                   block.q + from * block.Dp, block.Dp, dk + key * block.Dp, block.Dp, seen);
    }
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

// Whether the rows of a group change after their strips, or a mask's rows take their gradients.
HWY_INLINE bool finishes_rows(const Block& block, const BackwardState& state) {
  return block.problem->dropout.active() || state.mask_rows != nullptr ||
         block.problem->softcap != 0.0;
}

// The panels that add to the gradients of weights.
HWY_INLINE const std::vector<Panel>& value_reads(const Block& block) {
  static const std::vector<Panel> none;
  for (const Panel& panel : block.values) {
    if (panel.cells != nullptr) return block.values;
  }
  return none;
}

// The weights of the rows of a group that see a tile: what their strips are made of. slopes [kGroup, kTile]
// take those of a softcap.
struct GroupWeights {
  CapAndMask cap;
  Additions additions;
  WeightStrips strips;

  HWY_INLINE GroupWeights(const TileView& view, const BackwardState& state, int group,
                          const GroupSight& sight, float* slopes)
      : cap(view, group, sight.beyond),
        additions(view, view.block.scores, group, true),
        strips{sight,
               additions,
               cap,
               state.reference + group,
               state.inverse + group,
               state.p + group * kTile,
               cap.active() ? slopes : nullptr,
               state.bounded} {
    clear_outside(strips.p, sight.first(), sight.end());
    if (cap.active()) clear_outside(slopes, sight.first(), sight.end());
  }
};

// Their gradients of scores, likewise.
struct GroupGradients {
  HWY_ALIGN_MAX float factors[kGroup * kTile];  // of dropout
  Additions additions;
  GradientStrips strips;

  HWY_INLINE GroupGradients(const TileView& view, const BackwardState& state, int group,
                            const GroupSight& sight)
      : additions(view, value_reads(view.block), group, false),
        strips{sight,
               additions,
               state.delta + group,
               view.block.problem->dropout.active() ? factors : nullptr,
               state.p + group * kTile,
               state.ds + group * kTile} {
    clear_outside(strips.ds, sight.first(), sight.end());
    const int rows = std::min(kGroup, view.block.rows - group);
    for (int r = 0; strips.factors != nullptr && r < rows; ++r) {
      dropout_factors(view.block, group + r, view.t, factors + r * kTile);
    }
  }
};

// After the strips of a group: ds of a softcap, what v met in p, and the gradients of terms.
HWY_INLINE void finish_group(const TileView& view, Block& block, const BackwardState& state,
                             int group, const GroupSight& sight, const float* factors,
                             const float* slopes) {
  const int rows = std::min(kGroup, block.rows - group);
  float *p = state.p + group * kTile, *ds = state.ds + group * kTile;
  const bool capped = block.problem->softcap != 0.0;
  for (int r = 0; finishes_rows(block, state) && r < rows; ++r) {
    finish_row(block, state, group + r, view.t, sight.visible[r],
               factors == nullptr ? nullptr : factors + r * kTile,
               capped ? slopes + r * kTile : nullptr, p + r * kTile, ds + r * kTile);
  }
  add_to_gradients(view, block.scores, group, rows, ds, sight.first(), sight.end());
  add_to_gradients(view, block.values, group, rows, p, sight.first(), sight.end());
  if (!block.pairs.empty()) add_to_pairs(block, group, view.t, ds);
  for (int r = 0; !block.ramps.empty() && r < rows; ++r) {
    add_ramp_gradients(view, block, group + r, sight.visible[r], ds + r * kTile);
  }
}

// Where the rows of a group see nothing.
HWY_INLINE void clear_group(const BackwardState& state, int group) {
  clear(state.p + group * kTile, kGroup * kTile);
  clear(state.ds + group * kTile, kGroup * kTile);
}

// A block in one tile. Each product is computed for all groups before the next one: kt, vt or k stays in
// the nearest cache, which need not hold the three.
class TileGradients {
 public:
  HWY_INLINE TileGradients(Block& block, BackwardState& state, const KeyTile& tile, int64_t t)
      : block_(block), state_(state), tile_(tile), view_(block, tile, t) {}

  // What group g sees, and its weights.
  HWY_INLINE void weigh(int g, uint64_t common) {
    const int group = g * kGroup;
    const GroupSight& sight = sights_[g] =
        GroupSight(block_, group, view_.t, state_.reference, common);
    all_ &= sight.all;
    any_ |= sight.any;
    if (sight.any == 0) return clear_group(state_, group);
    const GroupWeights own(view_, state_, group, sight, slopes_ + group * kTile);
    row_strip<kGroup>(sight.first(), sight.end(), block_.D, block_.q + group * block_.Dp, block_.Dp,
                      1, tile_.kt, kTile, own.strips.p, kTile, false,
                      [&](int64_t n) HWY_ATTR { return Weights<false>{own.strips, n}; });
  }
  // Then its dscores, and the gradients of its terms.
  HWY_INLINE void differentiate(int g) {
    const int group = g * kGroup;
    const GroupSight& sight = sights_[g];
    if (sight.any == 0) return;
    const GroupGradients own(view_, state_, group, sight);
    row_strip<kGroup>(sight.first(), sight.end(), block_.Dv, state_.dout + group * block_.Dvp,
                      block_.Dvp, 1, tile_.vt, kTile, own.strips.ds, kTile, false,
                      [&](int64_t n) HWY_ATTR { return ScoreGradients{own.strips, n}; });
    finish_group(view_, block_, state_, group, sight, own.strips.factors, slopes_ + group * kTile);
    block_.prefetch_pairs(group, group + kGroup, view_.t + 1);
  }
  // dq += ds k, for all groups.
  HWY_INLINE void add_to_queries(int groups) const {
    const int64_t Dp = block_.Dp;
    const auto add = [&](int row, int end, const GroupSight& sight) HWY_ATTR {
      if (sight.any == 0) return;
      const int64_t from = sight.key(), keys = sight.last() - from;
      const float *ds = state_.ds + row * kTile + from, *k = tile_.k + from * Dp;
      float* dq = state_.dq + row * Dp;
      if (!sight.whole && !tile_.k_finite) {
        guarded_gemm(gemm, kGroup, Dp, keys, ds, kTile, 1, k, Dp, dq, Dp,
                     {sight.visible, from, false});
      } else {
        gemm(end - row, Dp, keys, ds, kTile, 1, k, Dp, dq, Dp, true);
      }
    };
    for_each_run(sights_, groups * kGroup, tile_.k_finite, add);
  }
  // dk and dv, in the block's turn.
  HWY_INLINE void add_to_keys(int groups) const {
    if (any_ == 0 || !state_.take_turn(state_.sums, view_.t)) return;
    key_gradients(block_, state_, view_.t, groups, sights_, all_ == kAll);
    add_key_bias_gradients(block_, state_, view_.t);
  }

 private:
  Block& block_;
  BackwardState& state_;
  const KeyTile& tile_;
  const TileView view_;
  GroupSight sights_[kRows / kGroup];
  uint64_t all_ = kAll, any_ = 0;
  HWY_ALIGN_MAX float slopes_[kRows * kTile];  // of a softcap
};

void backward(Block& block, BackwardState& state, const KeyTile& tile, int64_t t,
              const KeyTile* next) {
  const int groups = (block.rows + kGroup - 1) / kGroup;
  const uint64_t common = state.all_weigh ? seen_by_all(block, t) : 0;
  TileGradients x(block, state, tile, t);
  for (int g = 0; g < groups; ++g) {
    if (next != nullptr) {
      prefetch_part(next->kt, block.D * kTile, g, groups);
      prefetch_part(next->vt, block.Dv * kTile, g, groups);
    }
    x.weigh(g, common);
  }
  for (int g = 0; g < groups; ++g) {
    if (next != nullptr) {
      prefetch_part(next->k, block.Dp * kTile, g, groups);
      prefetch_part(state.dk + (t + 1) * kTile * block.Dp, block.Dp * kTile, g, groups);
      prefetch_part(state.dv + (t + 1) * kTile * block.Dvp, block.Dvp * kTile, g, groups);
    }
    x.differentiate(g);
  }
  x.add_to_queries(groups);
  x.add_to_keys(groups);
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

// Products of rows [first, last) in state.p and state.ds -> weights after dropout and dscores, and
// the gradients of terms.
void weigh_gradients(Block& block, BackwardState& state, const KeyTile& tile, int64_t t, int first,
                     int last) {
  const TileView view(block, tile, t);
  const uint64_t common = state.all_weigh ? seen_by_all(block, t) : 0;
  HWY_ALIGN_MAX float slopes[kGroup * kTile];
  for (int group = first; group < last; group += kGroup) {
    block.prefetch_pairs(group, group + kGroup, t + 1);
    const GroupSight sight(block, group, t, state.reference, common);
    if (sight.any == 0) {
      clear_group(state, group);
      continue;
    }
    const GroupWeights weights(view, state, group, sight, slopes);
    const GroupGradients gradients(view, state, group, sight);
    weigh_loaded(block.score_scale, sight.first(), sight.end(), weights.strips, gradients.strips);
    finish_group(view, block, state, group, sight, gradients.strips.factors, slopes);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace relpos
HWY_AFTER_NAMESPACE();

#endif
