// The contract between the drivers (plain C++) and the kernels (compiled once a SIMD target): a table of
// functions for each of those who call them.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/block/block.h"
#include "kernels/block/key_tile.h"
#include "kernels/block/product_rows.h"
#include "kernels/block/state.h"

namespace relpos {

// Up to kTile rows of keys or values. `dims` is a multiple of Kernels::step(dtype).
struct TensorRows {
  DType dtype = DType::kFloat32;  // float32, bfloat16 or float16
  const void* data = nullptr;
  int64_t stride = 0;  // elements from row to row
  int64_t dims = 0;
  int64_t count = 0;  // rows that exist, at least 1
};

// Products and other arithmetic of rows: plans, packing, and sums.
struct RowKernels {
  // C[M, N] = (accumulate ? C : 0) + A B; A at a[m * row_stride + k * k_stride]; N, ldb and ldc are
  // multiples of kLanes, B and C aligned to them.
  void (*gemm)(int64_t M, int64_t N, int64_t K, const float* a, int64_t row_stride,
               int64_t k_stride, const float* b, int64_t ldb, float* c, int64_t ldc,
               bool accumulate);
  // Rows of `to` [rows, n] = rows of `from` times factors[row * factor_stride]; strides between rows,
  // neither need be aligned.
  void (*scale)(int64_t rows, int64_t n, const float* from, int64_t stride, const float* factors,
                int64_t factor_stride, float* to, int64_t to_stride);
  // to[rows, n] = (accumulate ? to : 0) + from[rows, n] times factors[n], column by column; n is a multiple
  // of kLanes.
  void (*scale_columns)(int64_t rows, int64_t n, const float* from, const float* factors, float* to,
                        bool accumulate);
  // to[row * to_stride] += the sum of the n floats, a multiple of kLanes, at from[row * stride].
  void (*add_row_sums)(int64_t rows, int64_t n, const float* from, int64_t stride, float* to,
                       int64_t to_stride);
  // The sum of a[n] b[n] in double; n is a multiple of kLanes.
  double (*dot)(const float* a, const float* b, int64_t n);
  // Turns pairs of x by the angles, or by minus them (direction -1).
  void (*rotate)(float* x, int64_t pairs, bool interleaved, const float* cos, const float* sin,
                 float direction);
  // to[d, key] = rows[key, d] for `keys` of kTile keys, 0 from there to a multiple of kLanes; false
  // where one is NaN or Inf.
  bool (*transpose)(const float* rows, int64_t stride, int64_t keys, int64_t D, float* to);
  bool (*finite)(const float* x, int64_t n);
  // The largest Euclidean norm of the first `keys` columns of kt [D, kTile], as of transpose().
  float (*largest_norm)(const float* kt, int64_t keys, int64_t D);
  // to[n] = from[index[n]]; `index` ascends by 0 or 1; a vector may be read at from[index[n]].
  void (*expand)(const float* from, const int32_t* index, int64_t n, float* to);
  // y[n] = exp2(x[n]) as the softmax takes it; n is a multiple of kLanes.
  void (*exponentials)(const float* x, int64_t n, float* y);
};

// What column tables read and sum (terms/columns.h).
struct ColumnKernels {
  // extra[row * kTile + key] += products[key * stride + runs[kTile - 1 - key + row]]. `runs` does not
  // ascend, neighbours differ by 1 at most; readable, as products' rows, for kLanes beyond the last.
  void (*read_columns)(int rows, const float* products, int64_t stride, const int32_t* runs,
                       float* extra);
  // The transpose: products[key * stride + run] += the ds [rows, kTile] of the pairs that read it.
  void (*add_columns)(int rows, const float* ds, const int32_t* runs, float* products,
                      int64_t stride);
};

// Numbers and masks of other dtypes.
struct ConversionKernels {
  // 16-bit floats to and from float32, a row without gaps at a time, at any address. Rounding is to
  // nearest even, as base/half.h does it.
  void (*widen_bfloat16)(const void* half, int64_t n, float* row);
  void (*widen_float16)(const void* half, int64_t n, float* row);
  void (*narrow_bfloat16)(const float* row, int64_t n, void* half);
  void (*narrow_float16)(const float* row, int64_t n, void* half);
  // to[i] = from[i * step] times `multiplier`, times `unit`, in double and rounded once; step 1 or -1.
  // False, and some of `to` not so, where a finite product with the multiplier exceeds kLinear (log2.h).
  bool (*scale_in_double)(const float* from, int64_t step, int64_t n, double multiplier,
                          double unit, float* to);
  // Whether no finite one of x[n], times the multiplier, exceeds kLinear; may be false where one is near it.
  bool (*linear)(const float* x, int64_t n, double multiplier);
  // Bits of the `count` keys, up to kTile, that a row of a mask shows from element `at` on.
  uint64_t (*mask_bits)(const TensorView& mask, int64_t at, int64_t count);
};

// Numbers of tables, in float64. Row lengths are multiples of kLanes, and rows aligned to them.
struct WideKernels {
  // C[M, N] += A B; A at a[m * row_stride + k * k_stride].
  void (*wide_gemm)(int64_t M, int64_t N, int64_t K, const double* a, int64_t row_stride,
                    int64_t k_stride, const double* b, int64_t ldb, double* c, int64_t ldc);
  // y[n] = 1 / (1 + exp(-x[n])); a NaN stays one.
  void (*logistic)(const double* x, int64_t n, double* y);
};

// Rows of keys and values that are read in place.
struct DecodeKernels {
  // s[rows, kTile] = <q[row], k[c]>, where columns past the last key hold its
  // product or 0, and o[row] += sum over the listed keys of p[row, key] v[key].
  void (*row_scores)(const TensorRows& k, int rows, const float* q, int64_t ldq, float* s);
  void (*add_row_values)(const TensorRows& v, int rows, const float* p, const uint8_t* keys,
                         int count, float* o, int64_t ldo);
};

// The softmax of a block over a tile.
struct TileKernels {
  // What forward() does between its two products: p [rows, kTile], products of rows rounded up to
  // kGroup, become weights after dropout, 0 where hidden.
  void (*weigh)(Block& block, ForwardState& state, const KeyTile& tile, int64_t t, float* p);
  // The same of products that a unit computes, for weights that are rounded to bfloat16.
  void (*weigh_narrow)(Block& block, ForwardState& state, const KeyTile& tile, int64_t t,
                       ProductRows& rows);
  // What backward() does between its products, likewise: those of queries and keys in state.p, those of
  // dout and values in state.ds, become weights after dropout and dscores.
  void (*weigh_gradients)(Block& block, BackwardState& state, const KeyTile& tile, int64_t t,
                          int first, int last);
  // Adds the dscores of a block's rows to state.key_bias, where it is wanted, in the block's turn.
  void (*add_key_bias_gradients)(const Block& block, const BackwardState& state, int64_t t);
  // Adds state.mask_ds of a block's rows to the sums of the mask's gradient, in the block's turn.
  void (*add_mask_gradients)(const Block& block, const BackwardState& state, int64_t t);
  // Advances the state of a block over tiles [first, first + count).
  void (*forward)(Block& block, ForwardState& state, const KeyTile* tiles, int64_t first,
                  int64_t count);
  // Adds what tile t contributes to every gradient of the block. `next`: the tile that follows; null:
  // none is known.
  void (*backward)(Block& block, BackwardState& state, const KeyTile& tile, int64_t t,
                   const KeyTile* next);
  // Writes dense weights of a tile from `reference` and `inverse_sum` [kRows] or, where those are null,
  // dense scores.
  void (*emit)(const Block& block, const KeyTile& tile, int64_t t, const TensorView& dense,
               const float* reference, const float* inverse_sum);
  // factors[kTile]: 0 where dropout takes a key of tile t from a row, else 1 / (1 - p).
  void (*dropout)(const Block& block, int row, int64_t t, float* factors);
};

// All that a target gives.
struct Kernels : RowKernels,
                 ColumnKernels,
                 ConversionKernels,
                 WideKernels,
                 DecodeKernels,
                 TileKernels {
  const char* name;
  const MatrixUnit* unit = nullptr;  // multiplies queries, keys and values; null: float32 products
  int64_t lanes;                     // floats of a vector
  // Columns that row_scores and add_row_values take at a time.
  int64_t step(DType dtype) const noexcept { return dtype == DType::kBFloat16 ? 2 * lanes : lanes; }
};

// Kernels of a target that multiply bfloat16 numbers in a unit.
Kernels with_unit(Kernels kernels, const MatrixUnit& unit);

// Every target of this build that this machine runs, best first.
std::vector<Kernels> usable_kernels();

}  // namespace relpos
