// The tile kernels: forward, backward and dense, compiled once for each SIMD target.
#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/tiles.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "kernels/block.h"
#include "kernels/columns-inl.h"
#include "kernels/simd-inl.h"
#include "kernels/targets.h"
#include "kernels/terms-inl.h"

HWY_BEFORE_NAMESPACE();
namespace relpos {
namespace HWY_NAMESPACE {
namespace {

// A row keeps its reference exponent until a score passes it by this much: weights stay below 2^60
// and sums below 2^77, far inside float32, and almost no tile rescales.
constexpr float kSlack = 60.0f;
constexpr float kNothing = -HUGE_VALF;

// c[row] += sum over visible k of a[row, k] b[k]: what gemm does where no NaN hides behind a zero.
void masked_product(int rows, int64_t N, const float* a, int64_t lda, const uint64_t* visible,
                    const float* b, int64_t ldb, float* c, int64_t ldc) {
  for (int r = 0; r < rows; ++r) {
    for (int64_t k = 0; k < kTile; ++k) {
      if (((visible[r] >> k) & 1U) == 0) continue;
      for (int64_t n = 0; n < N; ++n) c[r * ldc + n] += a[r * lda + k] * b[k * ldb + n];
    }
  }
}

// c[k] += sum over rows that see k of a[row, k] b[row].
void masked_transposed_product(int rows, int64_t N, const float* a, int64_t lda,
                               const uint64_t* visible, const float* b, int64_t ldb, float* c,
                               int64_t ldc) {
  for (int r = 0; r < rows; ++r) {
    for (int64_t k = 0; k < kTile; ++k) {
      if (((visible[r] >> k) & 1U) == 0) continue;
      for (int64_t n = 0; n < N; ++n) c[k * ldc + n] += a[r * lda + k] * b[r * ldb + n];
    }
  }
}

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
  const V factor = exp2(hn::Set(d, old - highest));
  const auto rescale = [&](float* x, int64_t count) HWY_ATTR {
    int64_t c = 0;
    for (; c + kN <= count; c += kN) hn::StoreU(hn::Mul(hn::LoadU(d, x + c), factor), d, x + c);
    for (; c < count; ++c) x[c] *= hn::GetLane(factor);
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
    float* l = block.l + group * kLanes;
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const V reference = hn::Set(d, m[r]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        const V weight = exp2(hn::Sub(s[r][v], reference));
        float* sums = l + r * kLanes + (v * kN) % kLanes;
        hn::Store(hn::Add(hn::Load(d, sums), weight), d, sums);
        hn::Store(weight, d, p + r * kTile + v * kN);
      }
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

// p[kTile] columns outside [first, end) = 0, for what reads whole rows.
HWY_INLINE void clear_outside(float* p, int64_t first, int64_t end) {
  for (int r = 0; r < kGroup; ++r) {
    clear(p + r * kTile, first);
    clear(p + r * kTile + end, kTile - end);
  }
}

void forward(Block& block, const KeyTile* tiles, int64_t first, int64_t count) {
  HWY_ALIGN_MAX float p[kGroup * kTile];
  const bool drops = block.problem->dropout.active(), values = !block.values.empty();
  for (int64_t t = first; t < first + count; ++t) {
    const KeyTile& tile = tiles[t - first];
    const TileView view(block, tile, t);
    for (int group = 0; group < block.rows; group += kGroup) {
      const GroupSight sight(block, group, t, nullptr);
      if (sight.any == 0) continue;
      const int64_t from = sight.first(), last = sight.last(), end = sight.end();
      const Additions additions(view, block.scores, group, true);
      const int rows = std::min(kGroup, block.rows - group);
      for_rows(rows, [&](auto most) HWY_ATTR {
        row_strip<decltype(most)::value>(
            from, end, block.D, block.q + group * block.Dp, block.Dp, 1, tile.kt, kTile, p, kTile,
            false, [&](int64_t n) HWY_ATTR {
              return Softmax{block, additions, sight, group, from, n, p + n};
            });
      });
      if (drops || values) {
        clear_outside(p, from, end);
        for (int row = group; row < group + rows; ++row) {
          float* weights = p + (row - group) * kTile;
          if (drops) {
            HWY_ALIGN_MAX float factors[kTile];
            dropout_factors(block, row, t, factors);
            multiply(weights, factors);
          }
          add_to_gradients(view, block.values, row, weights);
        }
      }
      float* o = block.o + group * block.Dvp;
      if (sight.all != kAll && !tile.v_finite) {
        if (!drops && !values) clear_outside(p, from, end);
        masked_product(kGroup, block.Dvp, p, kTile, sight.visible, tile.v, block.Dvp, o, block.Dvp);
      } else {
        gemm(rows, block.Dvp, last - from, p + from, kTile, 1, tile.v + from * block.Dvp, block.Dvp,
             o, block.Dvp, true);
      }
    }
  }
}

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
      const V lse = hn::Set(d, block.lse[group + r]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) s[r][v] = exp2(hn::Sub(s[r][v], lse));
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
      const int64_t delta = view.distance(row, c);
      (delta < 0 ? ramp.past_sum[row] : ramp.future_sum[row]) +=
          static_cast<double>(ds[c]) * static_cast<double>(delta);
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
  if (!block_all && !block.rows_finite) {
    masked_transposed_product(groups * kGroup, block.Dvp, block.p, kTile, visible, block.dout,
                              block.Dvp, dv, block.Dvp);
    masked_transposed_product(groups * kGroup, block.Dp, block.ds, kTile, visible, block.q,
                              block.Dp, dk, block.Dp);
    return;
  }
  constexpr int64_t kStrip = 2 * kGroup;
  for (int64_t key = 0; key < kTile;) {
    int64_t keys = std::min(block_all ? kTile : kStrip, kTile - key);
    const uint64_t bits = (keys == kTile ? kAll : (uint64_t{1} << keys) - 1) << key;
    int begin = 0, end = groups;
    while (begin < end && (group_any[begin] & bits) == 0) ++begin;
    while (end > begin && (group_any[end - 1] & bits) == 0) --end;
    const int64_t from = begin * kGroup, rows = (end - begin) * kGroup;
    if (rows > 0) {
      gemm(keys, block.Dvp, rows, block.p + from * kTile + key, 1, kTile,
           block.dout + from * block.Dvp, block.Dvp, dv + key * block.Dvp, block.Dvp, true);
      gemm(keys, block.Dp, rows, block.ds + from * kTile + key, 1, kTile, block.q + from * block.Dp,
           block.Dp, dk + key * block.Dp, block.Dp, true);
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
      const GroupSight sight(block, group, t, block.lse);
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
        masked_product(kGroup, block.Dp, ds, kTile, sight.visible, tile.k, block.Dp, dq, block.Dp);
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

// Dense scores, or weights from lse.
struct Dense {
  const Block& block;
  const Additions& additions;
  const GroupSight& sight;
  bool weights;
  int group;
  int64_t n;
  float* p;

  template <int R, int kVectors>
  HWY_INLINE void operator()(V (&s)[R][kVectors]) const {
    const F d;
    additions.add_to(s, n);
    for (int r = 0; r < R; ++r) {
      const V lse = hn::Set(d, block.lse[group + r]);
      for (int v = 0; v < kVectors; ++v) {
        s[r][v] = weights ? exp2(hn::Sub(s[r][v], lse))
                          : hn::Mul(s[r][v], hn::Set(d, static_cast<float>(kLn2)));
      }
    }
    hide(s, sight, n, weights ? 0.0f : kNothing);
    Store{p, kTile}(s);
  }
};

void emit(Block& block, const KeyTile* tiles, int64_t first, int64_t count, const TensorView& dense,
          bool weights) {
  HWY_ALIGN_MAX float p[kGroup * kTile];
  for (int64_t t = first; t < first + count; ++t) {
    const KeyTile& tile = tiles[t - first];
    const TileView view(block, tile, t);
    const int64_t keys = std::min(kTile, block.problem->keys - t * kTile);
    for (int group = 0; group < block.rows; group += kGroup) {
      const GroupSight sight(block, group, t, weights ? block.lse : nullptr);
      const Additions additions(view, block.scores, group, true);
      row_strip<kGroup>(0, kTile, block.D, block.q + group * block.Dp, block.Dp, 1, tile.kt, kTile,
                        p, kTile, false, [&](int64_t n) HWY_ATTR {
                          return Dense{block, additions, sight, weights, group, n, p + n};
                        });
      for (int row = group; row < std::min(group + kGroup, block.rows); ++row) {
        float* out = p + (row - group) * kTile;
        if (weights && block.problem->dropout.active()) {
          HWY_ALIGN_MAX float factors[kTile];
          dropout_factors(block, row, t, factors);
          multiply(out, factors);
        }
        for (int64_t c = 0; c < keys; ++c) {
          dense.store(dense.offset({block.batch, block.head[row], block.index[row], t * kTile + c}),
                      static_cast<double>(out[c]));
        }
      }
    }
  }
}

}  // namespace

TileKernels kernels(const char* name) {
  return {name,   gemm,         scale,       rotate,  transpose, finite, largest_norm,
          expand, read_columns, add_columns, forward, backward,  emit};
}

}  // namespace HWY_NAMESPACE
}  // namespace relpos
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace relpos {

std::vector<TileKernels> compiled_kernels() {
  std::vector<TileKernels> all;
#if HWY_TARGETS & HWY_AVX3
  all.push_back(N_AVX3::kernels("avx512"));
#endif
#if HWY_TARGETS & HWY_AVX2
  all.push_back(N_AVX2::kernels("avx2"));
#endif
#if HWY_TARGETS & HWY_NEON
  all.push_back(N_NEON::kernels("neon"));
#endif
#if HWY_TARGETS & HWY_EMU128
  all.push_back(N_EMU128::kernels("baseline"));
#endif
#if HWY_TARGETS & HWY_SCALAR
  all.push_back(N_SCALAR::kernels("baseline"));
#endif
  return all;
}

}  // namespace relpos
#endif
