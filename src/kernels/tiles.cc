// The tile kernels: forward, backward and dense, compiled once for each SIMD target.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/tiles.cc"
// Three x86 targets are enough: AVX-512, AVX2 and the compiler's own baseline.
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "kernels/block.h"
#include "kernels/simd-inl.h"
#include "kernels/targets.h"

HWY_BEFORE_NAMESPACE();
namespace relpos {
namespace HWY_NAMESPACE {
namespace {

constexpr uint64_t kAll = ~uint64_t{0};
constexpr double kLn2 = 0.6931471805599453, kLog2e = 1.4426950408889634;
// A row keeps its reference exponent until a score passes it by this much: weights stay below 2^60
// and sums below 2^77, far inside float32, and almost no tile rescales.
constexpr float kSlack = 60.0f;
constexpr float kNothing = -HUGE_VALF;

struct RowTile {
  V x[kTileVectors];
};

HWY_INLINE void add_at(RowTile& t, const float* from) {
  for (int v = 0; v < kTileVectors; ++v) t.x[v] = hn::Add(t.x[v], hn::LoadU(F(), from + v * kN));
}

HWY_INLINE void add_into(float* to, const float* x) {
  const F d;
  for (int64_t c = 0; c < kTile; c += kN) {
    hn::StoreU(hn::Add(hn::LoadU(d, to + c), hn::Load(d, x + c)), d, to + c);
  }
}

HWY_INLINE int64_t distance(const Block& block, const KeyTile& tile, int row, int64_t c) {
  return (tile.run ? tile.first_position + c : tile.positions[c]) - block.position[row];
}

// Adds the cells that the panels hold for a row of a tile.
HWY_INLINE void add_panels(const std::vector<Panel>& panels, const Block& block,
                           const KeyTile& tile, int row, RowTile& t) {
  if (panels.empty()) return;
  if (tile.run) {
    const int64_t first = distance(block, tile, row, 0);
    for (const Panel& panel : panels) {
      if (panel.cells[row] != nullptr) add_at(t, panel.cells[row] + panel.offset(first));
    }
    return;
  }
  HWY_ALIGN_MAX float sums[kTile] = {};
  for (const Panel& panel : panels) {
    if (panel.cells[row] == nullptr) continue;
    for (int64_t c = 0; c < kTile; ++c) {
      sums[c] += panel.cells[row][panel.offset(distance(block, tile, row, c))];
    }
  }
  add_at(t, sums);
}

// Adds x into the gradient cells of the panels.
HWY_INLINE void add_to_gradients(std::vector<Panel>& panels, const Block& block,
                                 const KeyTile& tile, int row, uint64_t visible, const float* x) {
  if (panels.empty()) return;
  const int64_t first = distance(block, tile, row, 0);
  for (Panel& panel : panels) {
    float* cells = panel.gradient[row];
    if (cells == nullptr) continue;
    if (tile.run) {
      add_into(cells + panel.offset(first), x);
    } else {
      for (int64_t c = 0; c < kTile; ++c) {
        if ((visible >> c) & 1U) cells[panel.offset(distance(block, tile, row, c))] += x[c];
      }
    }
  }
}

// Everything that is added to a score besides <q, k>.
HWY_INLINE void add_score_terms(const Block& block, const KeyTile& tile, int row, int64_t t,
                                RowTile& s) {
  add_panels(block.scores, block, tile, row, s);
  if (block.key_bias[row] != nullptr) add_at(s, block.key_bias[row] + t * kTile);
  const Visibility& visible = block.problem->visible;
  if (block.ramps.empty() && !visible.floating_mask()) return;
  HWY_ALIGN_MAX float sums[kTile] = {};
  for (const Ramp& ramp : block.ramps) {
    for (int64_t c = 0; c < kTile; ++c) {
      const int64_t delta = distance(block, tile, row, c);
      sums[c] += static_cast<float>((delta < 0 ? ramp.past[row] : ramp.future[row]) *
                                    static_cast<double>(delta));
    }
  }
  if (visible.floating_mask()) {
    const TensorView& mask = visible.mask;
    const int64_t keys = std::min(kTile, block.problem->keys - t * kTile);
    const int64_t at =
        visible.mask_offset(block.batch, block.head[row], block.index[row], t * kTile);
    if (mask.dtype == DType::kFloat32 && mask.strides[3] == 1 && keys == kTile) {
      const V log2e = hn::Set(F(), static_cast<float>(kLog2e));
      const auto* from = reinterpret_cast<const float*>(mask.data) + at;
      for (int v = 0; v < kTileVectors; ++v) {
        s.x[v] = hn::MulAdd(hn::LoadU(F(), from + v * kN), log2e, s.x[v]);
      }
    } else {
      for (int64_t c = 0; c < keys; ++c) {
        sums[c] += static_cast<float>(kLog2e * mask.load(at + c * mask.strides[3]));
      }
    }
  }
  add_at(s, sums);
}

// Bits of the keys of tile t that a row sees.
HWY_INLINE uint64_t visible_bits(const Block& block, int row, int64_t t) {
  if (row >= block.rows) return 0;
  const int64_t first = t * kTile;
  if (block.lo[row] >= first + kTile || block.hi[row] <= first) return 0;
  const Visibility& visible = block.problem->visible;
  const bool inside = block.lo[row] <= first && block.hi[row] >= first + kTile;
  if (inside && visible.key_bits.empty() && !visible.mask.given()) return kAll;
  return visible.bits(block.batch, block.head[row], block.index[row], t);
}

// The factor of dropout for each key of a row of tile t, 0 or 1 / (1 - p): Dropout::hash in lanes.
HWY_INLINE void dropout_factors(const Block& block, int row, int64_t t, float* factors) {
  const F d;
  const hn::RebindToUnsigned<F> du;
  const Dropout& dropout = block.problem->dropout;
  const int64_t first = t * kTile;
  const Dropout::RowKey key =
      dropout.row_key(block.batch, block.head[row], block.index[row], first >> 32);
  const V scale = hn::Set(d, static_cast<float>(dropout.keep_scale()));
  for (int64_t c = 0; c < kTile; c += kN) {
    auto u = hn::Iota(du, static_cast<uint32_t>(first + c));
    u = hn::Add(hn::Mul(u, hn::Set(du, 0x9E3779B9U)), hn::Set(du, key.a));
    u = hn::Mul(hn::Xor(u, hn::ShiftRight<16>(u)), hn::Set(du, 0x7FEB352DU));
    u = hn::Add(hn::Xor(u, hn::ShiftRight<15>(u)), hn::Set(du, key.b));
    u = hn::Mul(u, hn::Set(du, 0x846CA68BU));
    u = hn::Xor(u, hn::ShiftRight<16>(u));
    const auto dropped = hn::Lt(u, hn::Set(du, dropout.threshold()));
    hn::Store(hn::IfThenZeroElse(hn::RebindMask(d, dropped), scale), d, factors + c);
  }
}

HWY_INLINE void multiply(float* x, const float* factors) {
  const F d;
  for (int64_t c = 0; c < kTile; c += kN) {
    hn::Store(hn::Mul(hn::Load(d, x + c), hn::Load(d, factors + c)), d, x + c);
  }
}

HWY_INLINE void clear(float* x, int64_t n) { std::fill_n(x, n, 0.0f); }

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

HWY_INLINE float largest(const RowTile& s) {
  V top = s.x[0];
  for (int v = 1; v < kTileVectors; ++v) top = hn::Max(top, s.x[v]);
  return hn::GetLane(hn::MaxOfLanes(F(), top));
}

// False for NaN too.
HWY_INLINE bool all_within(const RowTile& s, float bound) {
  const F d;
  const V most = hn::Set(d, bound);
  auto within = hn::Le(s.x[0], most);
  for (int v = 1; v < kTileVectors; ++v) within = hn::And(within, hn::Le(s.x[v], most));
  return hn::AllTrue(d, within);
}

// Moves a row's reference to the top of this tile and rescales what it has summed.
HWY_NOINLINE void move_reference(Block& block, int row, const RowTile& s) {
  const F d;
  const float old = block.m[row];
  bool ordered = true;
  for (int v = 0; v < kTileVectors; ++v) {
    ordered = ordered && hn::AllTrue(d, hn::Eq(s.x[v], s.x[v]));
  }
  if (!ordered) {  // the row becomes NaN whatever its reference is
    if (old == kNothing) block.m[row] = 0.0f;
    return;
  }
  const float top = largest(s);
  if (top == kNothing) return;
  block.m[row] = top;
  if (old == kNothing) return;
  const V factor = exp2(hn::Set(d, old - top));
  const auto rescale = [&](float* x, int64_t n) HWY_ATTR {
    int64_t c = 0;
    for (; c + kN <= n; c += kN) hn::StoreU(hn::Mul(hn::LoadU(d, x + c), factor), d, x + c);
    for (; c < n; ++c) x[c] *= hn::GetLane(factor);
  };
  rescale(block.l + row * kLanes, kLanes);
  rescale(block.o + row * block.Dvp, block.Dvp);
  for (Panel& panel : block.values) {
    if (panel.gradient[row] != nullptr) rescale(panel.gradient[row], panel.width + 2 * kPad);
  }
}

HWY_INLINE void hide(RowTile& s, uint64_t visible, float value) {
  if (visible == kAll) return;
  const V hidden = hn::Set(F(), value);
  for (int v = 0; v < kTileVectors; ++v) {
    s.x[v] = hn::IfThenElse(lanes_of(visible, v * kN), s.x[v], hidden);
  }
}

HWY_INLINE RowTile load_row(const float* from) {
  RowTile t;
  for (int v = 0; v < kTileVectors; ++v) t.x[v] = hn::Load(F(), from + v * kN);
  return t;
}

// scores -> weights in place, and the row's partial sums.
HWY_INLINE void softmax_row(Block& block, const KeyTile& tile, int row, int64_t t, uint64_t visible,
                            float* p) {
  const F d;
  RowTile s = load_row(p);
  add_score_terms(block, tile, row, t, s);
  hide(s, visible, kNothing);
  if (block.m[row] == kNothing || !all_within(s, block.m[row] + kSlack)) {
    move_reference(block, row, s);
    if (block.m[row] == kNothing) {
      clear(p, kTile);
      return;
    }
  }
  const V m = hn::Set(d, block.m[row]);
  float* l = block.l + row * kLanes;
  for (int v = 0; v < kTileVectors; ++v) {
    const V weight = exp2(hn::Sub(s.x[v], m));
    float* sums = l + (v * kN) % kLanes;
    hn::Store(hn::Add(hn::Load(d, sums), weight), d, sums);
    hn::Store(weight, d, p + v * kN);
  }
  if (block.problem->dropout.active()) {
    HWY_ALIGN_MAX float factors[kTile];
    dropout_factors(block, row, t, factors);
    multiply(p, factors);
  }
  add_to_gradients(block.values, block, tile, row, visible, p);
}

void forward(Block& block, const KeyTile* tiles, int64_t first, int64_t count) {
  HWY_ALIGN_MAX float p[kGroup * kTile];
  for (int64_t t = first; t < first + count; ++t) {
    const KeyTile& tile = tiles[t - first];
    for (int group = 0; group < block.rows; group += kGroup) {
      uint64_t visible[kGroup];
      uint64_t any = 0, all = kAll;
      for (int r = 0; r < kGroup; ++r) {
        visible[r] = visible_bits(block, group + r, t);
        any |= visible[r];
        all &= visible[r];
      }
      if (any == 0) continue;
      gemm(kGroup, kTile, block.D, block.q + group * block.Dp, block.Dp, 1, tile.kt, kTile, p,
           kTile, false);
      for (int r = 0; r < kGroup; ++r) {
        if (visible[r] == 0) {
          clear(p + r * kTile, kTile);
        } else {
          softmax_row(block, tile, group + r, t, visible[r], p + r * kTile);
        }
      }
      float* o = block.o + group * block.Dvp;
      if (all != kAll && !tile.v_finite) {
        masked_product(kGroup, block.Dvp, p, kTile, visible, tile.v, block.Dvp, o, block.Dvp);
      } else {
        gemm(kGroup, block.Dvp, kTile, p, kTile, 1, tile.v, block.Dvp, o, block.Dvp, true);
      }
    }
  }
}

HWY_INLINE void add_ramp_gradients(Block& block, const KeyTile& tile, int row, uint64_t visible,
                                   const float* ds) {
  for (Ramp& ramp : block.ramps) {
    for (int64_t c = 0; c < kTile; ++c) {
      if (((visible >> c) & 1U) == 0) continue;
      const int64_t delta = distance(block, tile, row, c);
      (delta < 0 ? ramp.past_sum[row] : ramp.future_sum[row]) +=
          static_cast<double>(ds[c]) * static_cast<double>(delta);
    }
  }
}

// One row of weights p and dscore ds, from scores (in p) and dweight (in ds), and its term gradients.
HWY_INLINE void backward_row(Block& block, const KeyTile& tile, int row, int64_t t,
                             uint64_t visible, float* p, float* ds) {
  const F d;
  RowTile s = load_row(p), dp = load_row(ds);
  add_score_terms(block, tile, row, t, s);
  bool reads_values = false;
  for (const Panel& panel : block.values) reads_values |= panel.cells[row] != nullptr;
  if (reads_values) add_panels(block.values, block, tile, row, dp);
  HWY_ALIGN_MAX float factors[kTile];
  const bool drops = block.problem->dropout.active();
  if (drops) dropout_factors(block, row, t, factors);
  const V lse = hn::Set(d, block.lse[row]), delta = hn::Set(d, block.delta[row]);
  RowTile weight;
  for (int v = 0; v < kTileVectors; ++v) {
    weight.x[v] = exp2(hn::Sub(s.x[v], lse));
    if (drops) {
      const V factor = hn::Load(d, factors + v * kN);
      dp.x[v] = hn::Mul(weight.x[v], hn::Sub(hn::Mul(dp.x[v], factor), delta));
      weight.x[v] = hn::Mul(weight.x[v], factor);
    } else {
      dp.x[v] = hn::Mul(weight.x[v], hn::Sub(dp.x[v], delta));
    }
  }
  hide(weight, visible, 0.0f);
  hide(dp, visible, 0.0f);
  for (int v = 0; v < kTileVectors; ++v) {
    hn::Store(weight.x[v], d, p + v * kN);
    hn::Store(dp.x[v], d, ds + v * kN);
  }
  add_to_gradients(block.scores, block, tile, row, visible, ds);
  add_to_gradients(block.values, block, tile, row, visible, p);
  add_ramp_gradients(block, tile, row, visible, ds);
  if (block.key_bias_gradient[row] != nullptr) {
    add_into(block.key_bias_gradient[row] + t * kTile, ds);
  }
  if (block.mask_gradient != nullptr) {
    for (int64_t c = 0; c < kTile; ++c) {
      if (((visible >> c) & 1U) == 0) continue;
      (*block.mask_gradient)[static_cast<size_t>(block.mask_index->offset(
          {block.batch, block.head[row], block.index[row], t * kTile + c}))] += ds[c];
    }
  }
}

void backward(Block& block, const KeyTile* tiles, int64_t first, int64_t count) {
  uint64_t visible[kRows];
  const int padded = (block.rows + kGroup - 1) / kGroup * kGroup;
  for (int64_t t = first; t < first + count; ++t) {
    const KeyTile& tile = tiles[t - first];
    uint64_t block_all = kAll;
    int begin = padded, end = 0;  // rows that any group of this tile touches
    for (int group = 0; group < padded; group += kGroup) {
      uint64_t any = 0, all = kAll;
      for (int row = group; row < group + kGroup; ++row) {
        visible[row] = block.lse[row] == kNothing ? 0 : visible_bits(block, row, t);
        any |= visible[row];
        all &= visible[row];
      }
      block_all &= all;
      float* p = block.p + group * kTile;
      float* ds = block.ds + group * kTile;
      if (any == 0) {
        clear(p, kGroup * kTile);
        clear(ds, kGroup * kTile);
        continue;
      }
      begin = std::min(begin, group);
      end = group + kGroup;
      gemm(kGroup, kTile, block.D, block.q + group * block.Dp, block.Dp, 1, tile.kt, kTile, p,
           kTile, false);
      gemm(kGroup, kTile, block.Dv, block.dout + group * block.Dvp, block.Dvp, 1, tile.vt, kTile,
           ds, kTile, false);
      for (int r = 0; r < kGroup; ++r) {
        if (visible[group + r] == 0) {
          clear(p + r * kTile, kTile);
          clear(ds + r * kTile, kTile);
        } else {
          backward_row(block, tile, group + r, t, visible[group + r], p + r * kTile,
                       ds + r * kTile);
        }
      }
      float* dq = block.dq + group * block.Dp;
      if (all != kAll && !tile.k_finite) {
        masked_product(kGroup, block.Dp, ds, kTile, visible + group, tile.k, block.Dp, dq,
                       block.Dp);
      } else {
        gemm(kGroup, block.Dp, kTile, ds, kTile, 1, tile.k, block.Dp, dq, block.Dp, true);
      }
    }
    if (begin >= end) continue;
    const int rows = end - begin;
    const float* p = block.p + begin * kTile;
    const float* ds = block.ds + begin * kTile;
    const float* dout = block.dout + begin * block.Dvp;
    const float* q = block.q + begin * block.Dp;
    float* dv = block.dv + t * kTile * block.Dvp;
    float* dk = block.dk + t * kTile * block.Dp;
    if (block_all != kAll && !block.rows_finite) {
      masked_transposed_product(rows, block.Dvp, p, kTile, visible + begin, dout, block.Dvp, dv,
                                block.Dvp);
      masked_transposed_product(rows, block.Dp, ds, kTile, visible + begin, q, block.Dp, dk,
                                block.Dp);
    } else {
      gemm(kTile, block.Dvp, rows, p, 1, kTile, dout, block.Dvp, dv, block.Dvp, true);
      gemm(kTile, block.Dp, rows, ds, 1, kTile, q, block.Dp, dk, block.Dp, true);
    }
  }
}

void emit(Block& block, const KeyTile* tiles, int64_t first, int64_t count, const TensorView& dense,
          bool weights) {
  const F d;
  HWY_ALIGN_MAX float p[kGroup * kTile];
  for (int64_t t = first; t < first + count; ++t) {
    const KeyTile& tile = tiles[t - first];
    const int64_t keys = std::min(kTile, block.problem->keys - t * kTile);
    for (int group = 0; group < block.rows; group += kGroup) {
      gemm(kGroup, kTile, block.D, block.q + group * block.Dp, block.Dp, 1, tile.kt, kTile, p,
           kTile, false);
      for (int row = group; row < std::min(group + kGroup, block.rows); ++row) {
        const uint64_t visible =
            weights && block.lse[row] == kNothing ? 0 : visible_bits(block, row, t);
        float* out = p + (row - group) * kTile;
        RowTile s = load_row(out);
        add_score_terms(block, tile, row, t, s);
        for (int v = 0; v < kTileVectors; ++v) {
          s.x[v] = weights ? exp2(hn::Sub(s.x[v], hn::Set(d, block.lse[row])))
                           : hn::Mul(s.x[v], hn::Set(d, static_cast<float>(kLn2)));
        }
        hide(s, visible, weights ? 0.0f : kNothing);
        for (int v = 0; v < kTileVectors; ++v) hn::Store(s.x[v], d, out + v * kN);
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

TileKernels kernels(const char* name) { return {name, gemm, forward, backward, emit}; }

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
