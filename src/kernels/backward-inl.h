// The backward pass of a block over tiles, for the SIMD target that includes this.
#if defined(RELPOS_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RELPOS_BACKWARD_INL_H_
#undef RELPOS_BACKWARD_INL_H_
#else
#define RELPOS_BACKWARD_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <vector>

#include "kernels/terms-inl.h"

HWY_BEFORE_NAMESPACE();
namespace relpos {
namespace HWY_NAMESPACE {
namespace {

// Scores -> weights of one strip, before dropout.
struct Weights {
  const Block& block;
  const Additions& additions;
  const GroupSight& sight;
  int group;
  int64_t n;
  float* p;

  template <int R, int kVectors>
  HWY_INLINE void operator()(V (&s)[R][kVectors]) const {
    const F d;
    additions.add_to(s, n);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const V reference = hn::Set(d, block.reference[group + r]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) s[r][v] = exp2(hn::Sub(s[r][v], reference));
    }
    hide(s, sight, n, 0.0f);
    Store{p, kTile}(s);
  }
};

// dweight -> dscore of one strip.
struct ScoreGradients {
  const Block& block;
  const Additions& additions;
  const GroupSight& sight;
  const float* factors;  // of dropout [kGroup, kTile], or null
  int group;
  int64_t n;
  const float* p;
  float* ds;

  template <int R, int kVectors>
  HWY_INLINE void operator()(V (&dp)[R][kVectors]) const {
    const F d;
    additions.add_to(dp, n);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const V delta = hn::Set(d, block.delta[group + r]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        const int64_t at = r * kTile + v * kN;
        if (factors != nullptr) dp[r][v] = hn::Mul(dp[r][v], hn::Load(d, factors + at + n));
        dp[r][v] = hn::Mul(hn::Load(d, p + at), hn::Sub(dp[r][v], delta));
      }
    }
    hide(dp, sight, n, 0.0f);
    Store{ds, kTile}(dp);
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

// Gradients of the terms of one row, from its dscore; and, with dropout, p becomes what v met.
HWY_INLINE void backward_row(const TileView& view, Block& block, int row, uint64_t visible,
                             const float* factors, float* p, const float* ds) {
  if (factors != nullptr) multiply(p, factors);
  add_to_gradients(view, block.scores, row, ds);
  add_to_gradients(view, block.values, row, p);
  add_ramp_gradients(view, block, row, visible, ds);
  if (block.key_bias_gradient[row] != nullptr) {
    const F d;
    float* to = block.key_bias_gradient[row] + view.t * kTile;
    for (int64_t c = 0; c < kTile; c += kN) {
      hn::Store(hn::Add(hn::Load(d, to + c), hn::Load(d, ds + c)), d, to + c);
    }
  }
  if (block.mask_gradient == nullptr) return;
  for (int64_t c = 0; c < kTile; ++c) {
    if (((visible >> c) & 1U) == 0) continue;
    (*block.mask_gradient)[static_cast<size_t>(block.mask_index->offset(
        {block.batch, block.head[row], block.index[row], view.t * kTile + c}))] += ds[c];
  }
}

// dv += p^T dout and dk += ds^T q, for the rows that see each strip of keys.
HWY_INLINE void key_gradients(Block& block, int64_t t, int groups, const uint64_t* group_any,
                              const uint64_t* visible, bool block_all) {
  float* dv = block.dv + t * kTile * block.Dvp;
  float* dk = block.dk + t * kTile * block.Dp;
  constexpr int64_t kStrip = 2 * kGroup;
  for (int64_t key = 0; key < kTile;) {
    int64_t keys = std::min(block_all ? kTile : kStrip, kTile - key);
    const uint64_t bits = (keys == kTile ? kAll : (uint64_t{1} << keys) - 1) << key;
    int begin = 0, end = groups;
    while (begin < end && (group_any[begin] & bits) == 0) ++begin;
    while (end > begin && (group_any[end - 1] & bits) == 0) --end;
    const int64_t from = begin * kGroup, rows = (end - begin) * kGroup;
    if (rows > 0 && (block_all || block.rows_finite)) {
      gemm(keys, block.Dvp, rows, block.p + from * kTile + key, 1, kTile,
           block.dout + from * block.Dvp, block.Dvp, dv + key * block.Dvp, block.Dvp, true);
      gemm(keys, block.Dp, rows, block.ds + from * kTile + key, 1, kTile, block.q + from * block.Dp,
           block.Dp, dk + key * block.Dp, block.Dp, true);
    } else if (rows > 0) {
      const Seen seen{visible + from, key, true};
      guarded_gemm(gemm, keys, block.Dvp, rows, block.p + from * kTile + key, 1, kTile,
                   block.dout + from * block.Dvp, block.Dvp, dv + key * block.Dvp, block.Dvp, seen);
      guarded_gemm(gemm, keys, block.Dp, rows, block.ds + from * kTile + key, 1, kTile,
                   block.q + from * block.Dp, block.Dp, dk + key * block.Dp, block.Dp, seen);
    }
    key += keys;
  }
}

void backward(Block& block, const KeyTile* tiles, int64_t first, int64_t count) {
  const int groups = (block.rows + kGroup - 1) / kGroup;
  const bool drops = block.problem->dropout.active();
  bool reads_values = false;
  for (const Panel& panel : block.values) reads_values |= panel.cells[0] != nullptr;
  const std::vector<Panel> no_panels;
  const bool by_row = drops || !block.scores.empty() || !block.values.empty() ||
                      !block.ramps.empty() || block.key_bias_gradient[0] != nullptr ||
                      block.mask_gradient != nullptr;
  uint64_t visible[kRows], group_any[kRows / kGroup];
  HWY_ALIGN_MAX float factors[kGroup * kTile];
  for (int64_t t = first; t < first + count; ++t) {
    const KeyTile& tile = tiles[t - first];
    const TileView view(block, tile, t);
    uint64_t block_all = kAll, block_any = 0;
    for (int g = 0; g < groups; ++g) {
      const int group = g * kGroup;
      if (t + 1 < first + count) {
        const KeyTile& next = tiles[t + 1 - first];
        prefetch_part(next.kt, block.D * kTile, g, groups);
        prefetch_part(next.vt, block.Dv * kTile, g, groups);
        prefetch_part(next.k, block.Dp * kTile, g, groups);
        prefetch_part(block.dk + (t + 1) * kTile * block.Dp, block.Dp * kTile, g, groups);
        prefetch_part(block.dv + (t + 1) * kTile * block.Dvp, block.Dvp * kTile, g, groups);
      }
      const GroupSight sight(block, group, t, block.reference);
      std::copy_n(sight.visible, kGroup, visible + group);
      group_any[g] = sight.any;
      block_all &= sight.all;
      block_any |= sight.any;
      float* p = block.p + group * kTile;
      float* ds = block.ds + group * kTile;
      if (sight.any == 0) {
        clear(p, kGroup * kTile);
        clear(ds, kGroup * kTile);
        continue;
      }
      const int64_t from = sight.first(), last = sight.last(), end = sight.end();
      clear_outside(p, from, end);
      clear_outside(ds, from, end);
      if (drops) {
        for (int r = 0; r < std::min(kGroup, block.rows - group); ++r) {
          dropout_factors(block, group + r, t, factors + r * kTile);
        }
      }
      const float* dropout = drops ? factors : nullptr;
      {
        const Additions additions(view, block.scores, group, true);
        row_strip<kGroup>(from, end, block.D, block.q + group * block.Dp, block.Dp, 1, tile.kt,
                          kTile, p, kTile, false, [&](int64_t n) HWY_ATTR {
                            return Weights{block, additions, sight, group, n, p + n};
                          });
      }
      {
        const Additions additions(view, reads_values ? block.values : no_panels, group, false);
        row_strip<kGroup>(from, end, block.Dv, block.dout + group * block.Dvp, block.Dvp, 1,
                          tile.vt, kTile, ds, kTile, false, [&](int64_t n) HWY_ATTR {
                            return ScoreGradients{block, additions, sight, dropout,
                                                  group, n,         p + n, ds + n};
                          });
      }
      for (int r = 0; by_row && r < std::min(kGroup, block.rows - group); ++r) {
        backward_row(view, block, group + r, sight.visible[r],
                     drops ? factors + r * kTile : nullptr, p + r * kTile, ds + r * kTile);
      }
      float* dq = block.dq + group * block.Dp;
      if (sight.all != kAll && !tile.k_finite) {
        guarded_gemm(gemm, kGroup, block.Dp, last - from, ds + from, kTile, 1,
                     tile.k + from * block.Dp, block.Dp, dq, block.Dp,
                     {sight.visible, from, false});
      } else {
        gemm(kGroup, block.Dp, last - from, ds + from, kTile, 1, tile.k + from * block.Dp, block.Dp,
             dq, block.Dp, true);
      }
    }
    if (block_any != 0) {
      key_gradients(block, t, groups, group_any, visible, block_all == kAll);
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace relpos
HWY_AFTER_NAMESPACE();

#endif
