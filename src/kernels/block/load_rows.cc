#include "kernels/block/load_rows.h"

#include <algorithm>
#include <cstring>

#include "kernels/block/kernels.h"

namespace relpos {

const float* row_in_place(const TensorView& view, int64_t b, int64_t h, int64_t i) {
  if (view.dtype != DType::kFloat32 || view.strides[3] != 1) return nullptr;
  return static_cast<const float*>(view.data) + view.offset({b, h, i, 0});
}

void load_row(const TensorView& view, int64_t b, int64_t h, int64_t i, int64_t n, int64_t padded,
              float* row) {
  if (n <= 0) {  // there may be no memory at all
    std::fill_n(row, padded, 0.0f);
    return;
  }
  const int64_t at = view.offset({b, h, i, 0}), stride = view.strides[3];
  const auto* bytes = static_cast<const unsigned char*>(view.data);
  if (view.dtype == DType::kFloat32 && stride == 1) {
    std::memcpy(row, bytes + at * 4, static_cast<size_t>(n) * 4);
  } else if (view.dtype == DType::kFloat32) {
    for (int64_t d = 0; d < n; ++d) std::memcpy(row + d, bytes + (at + d * stride) * 4, 4);
  } else if (view.dtype == DType::kBFloat16 && stride == 1) {
    tile_kernels().widen_bfloat16(bytes + at * 2, n, row);
  } else if (view.dtype == DType::kFloat16 && stride == 1) {
    tile_kernels().widen_float16(bytes + at * 2, n, row);
  } else {
    for (int64_t d = 0; d < n; ++d) row[d] = static_cast<float>(view.load(at + d * stride));
  }
  std::fill(row + n, row + padded, 0.0f);
}

void store_row(const TensorView& view, int64_t b, int64_t h, int64_t i, int64_t n, const float* row,
               int64_t first) {
  if (n <= 0) return;
  const int64_t at = view.offset({b, h, i, first}), stride = view.strides[3];
  auto* bytes = static_cast<unsigned char*>(view.data);
  if (view.dtype == DType::kFloat32 && stride == 1) {
    std::memcpy(bytes + at * 4, row, static_cast<size_t>(n) * 4);
  } else if (view.dtype == DType::kFloat32) {
    for (int64_t d = 0; d < n; ++d) std::memcpy(bytes + (at + d * stride) * 4, row + d, 4);
  } else if (view.dtype == DType::kBFloat16 && stride == 1) {
    tile_kernels().narrow_bfloat16(row, n, bytes + at * 2);
  } else if (view.dtype == DType::kFloat16 && stride == 1) {
    tile_kernels().narrow_float16(row, n, bytes + at * 2);
  } else {
    for (int64_t d = 0; d < n; ++d) view.store(at + d * stride, static_cast<double>(row[d]));
  }
}

void store_scaled(const Kernels& kernels, const TensorView& view, int64_t b, int64_t h, int64_t i,
                  int64_t rows, int64_t n, float* from, int64_t stride, const float* factors,
                  int64_t factor_stride) {
  const bool in_place = view.dtype == DType::kFloat32 && view.strides[3] == 1;
  float* to = in_place ? static_cast<float*>(view.data) + view.offset({b, h, i, 0}) : from;
  kernels.scale(rows, n, from, stride, factors, factor_stride, to,
                in_place ? view.strides[2] : stride);
  for (int64_t row = 0; row < rows && !in_place; ++row) {
    store_row(view, b, h, i + row, n, from + row * stride);
  }
}

}  // namespace relpos
