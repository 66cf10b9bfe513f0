// The tile kernels: forward, backward and dense, compiled once for each SIMD target.
#include "base/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/tiles.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <algorithm>

#include "base/buffer.h"
#include "kernels/block/kernels.h"
#include "kernels/block/log2.h"
#include "kernels/simd/backward-inl.h"
#include "kernels/simd/columns-inl.h"
#include "kernels/simd/dropout-inl.h"
#include "kernels/simd/forward-inl.h"
#include "kernels/simd/math-inl.h"
#include "kernels/simd/narrow-inl.h"
#include "kernels/simd/sight-inl.h"
#include "kernels/simd/targets.h"
#include "kernels/simd/terms-inl.h"
#include "kernels/simd/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace relpos {
namespace HWY_NAMESPACE {
namespace {

// Scores of one strip.
struct Scores {
  const Additions& additions;
  const CapAndMask& cap;
  const GroupSight& sight;
  int64_t n;
  float* p;

  template <int R, int kVectors>
  HWY_INLINE void operator()(V (&s)[R][kVectors]) const {
    additions.add_to(s, n);
    cap.apply(s, n);
    hide(s, sight, n, kNothing);
    Store{p, kTile}(s);
  }
};

void emit(const Block& block, const KeyTile& tile, int64_t t, const TensorView& dense,
          const float* reference, const float* inverse_sum) {
  const bool weights = reference != nullptr;
  HWY_ALIGN_MAX float p[kGroup * kTile], factors[kTile];
  const TileView view(block, tile, t);
  const int64_t keys = std::min(kTile, block.problem->keys - t * kTile);
  for (int group = 0; group < block.rows; group += kGroup) {
    GroupSight sight(block, group, t, reference, 0);
    sight.whole = sight.all == kAll;  // columns that no row sees are stored, too
    const Additions additions(view, block.scores, group, true);
    const CapAndMask cap(view, group, sight.beyond);
    const WeightStrips strip{sight,   additions, cap,     weights ? reference + group : nullptr,
                             nullptr, p,         nullptr, true};
    const auto strips = [&](const auto& finish) HWY_ATTR {
      row_strip<kGroup>(0, round_up(keys, kLanes), block.D, block.q + group * block.Dp, block.Dp, 1,
                        tile.kt, kTile, p, kTile, false, finish);
    };
    if (weights) {
      strips([&](int64_t n) HWY_ATTR { return Weights<false>{strip, n}; });
    } else {
      strips([&](int64_t n) HWY_ATTR { return Scores{additions, cap, sight, n, p + n}; });
    }
    for (int row = group; row < std::min(group + kGroup, block.rows); ++row) {
      float* out = p + (row - group) * kTile;
      if (weights && block.problem->dropout.active()) {
        dropout_factors(block, row, t, factors);
        multiply(out, factors);
      }
      for (int64_t c = 0; c < keys; ++c) {
        dense.store(dense.offset({block.batch, block.head[row], block.index[row], t * kTile + c}),
                    weights ? static_cast<double>(out[c] * inverse_sum[row])
                            : from_log2(static_cast<double>(out[c])) + block.score_shift[row]);
      }
    }
  }
}

void exponentials(const float* x, int64_t n, float* y) {
  for (int64_t c = 0; c < n; c += kN) hn::StoreU(exp2(hn::LoadU(F(), x + c)), F(), y + c);
}

void dropout(const Block& block, int row, int64_t t, float* factors) {
  dropout_factors(block, row, t, factors);
}

}  // namespace

// Defined in masks.cc, convert.cc, table_math.cc and decode_tiles.cc, for the same target.
uint64_t mask_bits(const TensorView& mask, int64_t at, int64_t count);
void widen_bfloat16(const void* half, int64_t n, float* row);
void widen_float16(const void* half, int64_t n, float* row);
void narrow_bfloat16(const float* row, int64_t n, void* half);
void narrow_float16(const float* row, int64_t n, void* half);
bool scale_in_double(const float* from, int64_t step, int64_t n, double multiplier, double unit,
                     float* to);
bool linear(const float* x, int64_t n, double multiplier);
void wide_gemm(int64_t M, int64_t N, int64_t K, const double* a, int64_t row_stride,
               int64_t k_stride, const double* b, int64_t ldb, double* c, int64_t ldc);
void logistic(const double* x, int64_t n, double* y);
void row_scores(const TensorRows& k, int rows, const float* q, int64_t ldq, float* s);
void add_row_values(const TensorRows& v, int rows, const float* p, const uint8_t* keys, int count,
                    float* o, int64_t ldo);

Kernels kernels(const char* name) {
  return {RowKernels{.gemm = gemm,
                     .scale = scale,
                     .scale_columns = scale_columns,
                     .add_row_sums = add_row_sums,
                     .dot = dot,
                     .rotate = rotate,
                     .transpose = transpose,
                     .finite = finite,
                     .largest_norm = largest_norm,
                     .expand = expand,
                     .exponentials = exponentials},
          ColumnKernels{.read_columns = read_columns, .add_columns = add_columns},
          ConversionKernels{.widen_bfloat16 = widen_bfloat16,
                            .widen_float16 = widen_float16,
                            .narrow_bfloat16 = narrow_bfloat16,
                            .narrow_float16 = narrow_float16,
                            .scale_in_double = scale_in_double,
                            .linear = linear,
                            .mask_bits = mask_bits},
          WideKernels{.wide_gemm = wide_gemm, .logistic = logistic},
          DecodeKernels{.row_scores = row_scores, .add_row_values = add_row_values},
          TileKernels{.weigh = weigh,
                      .weigh_narrow = weigh_narrow,
                      .weigh_gradients = weigh_gradients,
                      .add_key_bias_gradients = add_key_bias_gradients,
                      .add_mask_gradients = add_mask_gradients,
                      .forward = forward,
                      .backward = backward,
                      .emit = emit,
                      .dropout = dropout},
          name,
          nullptr,
          kN};
}

}  // namespace HWY_NAMESPACE
}  // namespace relpos
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace relpos {

std::vector<Kernels> usable_kernels() { return RELPOS_EVERY_TARGET(Kernels, kernels); }

}  // namespace relpos
#endif
