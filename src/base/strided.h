// Walks over the elements of strided arrays.
#pragma once

#include <array>
#include <cstdint>

#include "relpos/tensor.h"

namespace relpos {

// Calls f(offset in elements) for each element of `view` in row-major order.
template <typename F>
void for_each_offset(const TensorView& view, F&& f) {
  if (view.numel() == 0) return;
  std::array<int64_t, kMaxRank> index{};
  int64_t offset = 0;
  while (true) {
    f(offset);
    int axis = view.rank - 1;
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

}  // namespace relpos
