// Rows of a tensor of any dtype and strides as floats.
#pragma once

#include "relpos/tensor.h"

namespace relpos {

struct Kernels;

// Row (b, h, i) where it is float32 with unit stride, and the next ones at strides[2]; else null.
const float* row_in_place(const TensorView& view, int64_t b, int64_t h, int64_t i);
// Its n numbers, then zeros up to `padded`.
void load_row(const TensorView& view, int64_t b, int64_t h, int64_t i, int64_t n, int64_t padded,
              float* row);
// From column `first` on.
void store_row(const TensorView& view, int64_t b, int64_t h, int64_t i, int64_t n, const float* row,
               int64_t first = 0);

// Stores `rows` rows from i on, `stride` apart, times factors[row * factor_stride]; they may change.
void store_scaled(const Kernels& kernels, const TensorView& view, int64_t b, int64_t h, int64_t i,
                  int64_t rows, int64_t n, float* from, int64_t stride, const float* factors,
                  int64_t factor_stride);

}  // namespace relpos
