// Reads rows of a tensor of any dtype and strides as floats.
#pragma once

#include "relpos/tensor.h"

namespace relpos {

// Row (b, h, i) of a float32 tensor with unit stride; the next row is strides[2] further. Null for other
// tensors.
const float* row_in_place(const TensorView& view, int64_t b, int64_t h, int64_t i);
// Its n numbers, then zeros up to `padded`.
void load_row(const TensorView& view, int64_t b, int64_t h, int64_t i, int64_t n, int64_t padded,
              float* row);
void store_row(const TensorView& view, int64_t b, int64_t h, int64_t i, int64_t n,
               const float* row);

}  // namespace relpos
