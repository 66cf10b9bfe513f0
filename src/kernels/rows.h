// Rows of a tensor of any dtype and strides as floats.
#pragma once

#include "relpos/tensor.h"

namespace relpos {

// Row (b, h, i) where it is float32 with unit stride, and the next ones at strides[2]; else null.
const float* row_in_place(const TensorView& view, int64_t b, int64_t h, int64_t i);
// Its n numbers, then zeros up to `padded`.
void load_row(const TensorView& view, int64_t b, int64_t h, int64_t i, int64_t n, int64_t padded,
              float* row);
// From column `first` on.
void store_row(const TensorView& view, int64_t b, int64_t h, int64_t i, int64_t n, const float* row,
               int64_t first = 0);

}  // namespace relpos
