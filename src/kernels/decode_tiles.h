// A decode step's arithmetic: keys and values are read where the caller keeps them, row by row, each
// row once for up to four query rows. Compiled once a SIMD target.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/problem.h"

namespace relpos {

// Up to kTile rows of keys or values. `dims` is a multiple of DecodeKernels::step(dtype).
struct TensorRows {
  DType dtype = DType::kFloat32;  // float32, bfloat16 or float16
  const void* data = nullptr;
  int64_t stride = 0;  // elements from row to row
  int64_t dims = 0;
  int64_t count = 0;  // rows that exist, at least 1
};

// (delta < 0 ? past : future) * delta, each slope split into two floats.
struct Slope {
  float past[2], future[2];
};

// What one row adds to the kTile scores of a tile.
struct RowTerms {
  const float* const* cells = nullptr;  // `count` pointers to kTile floats
  int count = 0;
  const Slope* slopes = nullptr;
  int slope_count = 0;
  float delta = 0.0f;  // of the tile's first key
  uint64_t visible = 0;
};

// What the sums of a row are multiplied by, the one after the other, as its reference has risen.
struct RowFactors {
  float first = 1.0f, second = 1.0f;
};

struct DecodeKernels {
  const char* name;
  int64_t lanes;
  // s[rows, kTile] = <q[row], k[c]>; columns past the last key repeat it.
  void (*scores)(const TensorRows& k, int rows, const float* q, int64_t ldq, float* s);
  // Scores of one row -> weights, in place; hidden ones 0. m: the row's reference (-inf: none yet);
  // l [kLanes]: its partial sums. Returns what the row's earlier sums were multiplied by.
  RowFactors (*softmax)(const RowTerms& terms, float* s, float& m, float* l);
  // o[row] += sum over the listed keys of p[row, key] v[key].
  void (*values)(const TensorRows& v, int rows, const float* p, const uint8_t* keys, int count,
                 float* o, int64_t ldo);

  // Columns that a load takes at a time.
  int64_t step(DType dtype) const noexcept { return dtype == DType::kBFloat16 ? 2 * lanes : lanes; }
  // bfloat16 loads split a step into its even and its odd columns: q of `scores` and o of `values` are
  // in that order. To it, and back.
  void arrange(DType dtype, int64_t n, float* row) const;
  void restore(DType dtype, int64_t n, float* row) const;
};

// Every target that this build holds, best first, supported by this machine or not.
std::vector<DecodeKernels> compiled_decode_kernels();
const DecodeKernels& decode_kernels();  // of the target in use

}  // namespace relpos
