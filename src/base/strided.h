// Walks over the elements of strided arrays.
#pragma once

#include <array>
#include <cstdint>

#include "relpos/tensor.h"

namespace relpos {

// Calls f(offset in elements, elements, stride) for each row of `view` along its last axis, in row-major
// order; a number is a row of one.
template <typename F>
void for_each_row(const TensorView& view, F&& f) {
  if (view.numel() == 0) return;
  const int last = view.rank - 1;
  const int64_t count = last < 0 ? 1 : view.shape[static_cast<size_t>(last)];
  const int64_t stride = last < 0 ? 1 : view.strides[static_cast<size_t>(last)];
  std::array<int64_t, kMaxRank> index{};
  int64_t offset = 0;
  while (true) {
    f(offset, count, stride);
    int axis = last - 1;
    for (; axis >= 0; --axis) {
      const auto a = static_cast<size_t>(axis);
      offset += view.strides[a];
      if (++index[a] < view.shape[a]) break;
      offset -= view.strides[a] * view.shape[a];
      index[a] = 0;
    }
    if (axis < 0) return;
  }
}

// Calls f(offset in elements) for each element of `view` in row-major order.
template <typename F>
void for_each_offset(const TensorView& view, F&& f) {
  for_each_row(view, [&](int64_t offset, int64_t count, int64_t stride) {
    for (int64_t n = 0; n < count; ++n) f(offset + n * stride);
  });
}

}  // namespace relpos
