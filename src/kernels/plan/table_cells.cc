#include "kernels/plan/table_cells.h"

#include <algorithm>
#include <cstddef>

#include "kernels/block/log2.h"

namespace relpos {
namespace {

// Where the cells of a window lie one after another in a row of floats, forwards or backwards: the first of
// them, else null.
const float* neighbours(const ClassWindow& window, const TermData& table, int64_t head,
                        int64_t cell) {
  const TensorView& view = table.view;
  const int64_t stride = view.strides[1] * window.step;
  if (view.dtype != DType::kFloat32 || (stride != 1 && stride != -1)) return nullptr;
  const auto* data = static_cast<const std::byte*>(view.data);
  if (reinterpret_cast<uintptr_t>(data) % sizeof(float) != 0) return nullptr;
  data += view.offset({head, window.class_of(cell)}) * item_size(view.dtype);
  return reinterpret_cast<const float*>(data);
}

}  // namespace

const float* cells_in_place(const ClassWindow& window, const TermData& table, int64_t head,
                            int64_t first) {
  return table.view.strides[1] * window.step == 1 ? neighbours(window, table, head, first)
                                                  : nullptr;
}

void write_cells(const ClassWindow& window, const TermData& table, int64_t head, int64_t first,
                 int64_t count, CellUnit unit, float* cells) {
  const bool log2 = unit == CellUnit::kLog2;
  // Neighbours of one class, as the cells of a bucket are, are read once.
  const auto write = [&](int64_t from, int64_t to) {
    int64_t last = ClassMap::kNone;
    float number = 0.0f;
    for (int64_t c = from; c < to; ++c) {
      const int64_t row = window.class_of(c);
      if (row != last) {
        const double x =
            row == ClassMap::kNone ? 0.0 : table.view.at({head, row}) * table.multiplier;
        number = static_cast<float>(log2 ? to_log2(x) : x);
        last = row;
      }
      cells[c - first] = number;
    }
  };
  const int64_t end = first + count;
  const int64_t from = std::clamp<int64_t>(0, first, end);
  const int64_t to = std::clamp(window.width, from, end);
  write(first, from);
  write(to, end);
  const float* inside = from < to ? neighbours(window, table, head, from) : nullptr;
  if (inside == nullptr || !tile_kernels().scale_in_double(
                               inside, table.view.strides[1] * window.step, to - from,
                               table.multiplier, log2 ? kLog2e : 1.0, cells + (from - first))) {
    write(from, to);
  }
}

}  // namespace relpos
