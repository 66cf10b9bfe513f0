// What a term read by classes of pairs adds to the scores of a block: a cell for each class, which bytes of
// the caller choose.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/block/sizes.h"
#include "relpos/terms.h"

namespace relpos {

struct PairPanel {
  const uint8_t* classes = nullptr;          // of the first query and key of the batch row
  int64_t query_stride = 0, key_stride = 1;  // bytes from one to the next
  int64_t width = 0;                         // classes of the table
  int64_t stride = 0;                        // cells of a row of gradients
  const float* cells = nullptr;              // a row of cells for each class
  int64_t cell_stride = 0;                   // from row to row
  const int64_t* row_of = nullptr;           // as of Panel
  float* gradient = nullptr;                 // added to; null: nothing to add
  bool sums_rows = false;                    // all rows of a block add to one row of the gradient

  // Of query i and the keys of tile t.
  const uint8_t* bytes(int64_t i, int64_t t) const noexcept {
    return classes + i * query_stride + t * kTile * key_stride;
  }
  const float* row_cells(int row) const noexcept {
    return cells + (row_of == nullptr ? row : row_of[row]) * cell_stride;
  }
  // Whether the bytes of a tile of so many keys are read where they lie.
  bool in_place(int64_t keys) const noexcept { return key_stride == 1 && keys == kTile; }
};

// Cells of a row, a power of 2: every class that a pair may have has one, the hidden one, too, and so have
// the lanes of all vectors among which cells are looked up.
inline int64_t pair_stride(const PairClasses& classes, int64_t rows) noexcept {
  constexpr int64_t kLeast = 2 * kLanes;
  const int64_t cells = std::max({kLeast, rows, int64_t{classes.hidden} + 1});
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(cells)));
}

// Of batch row b, without cells.
inline PairPanel pair_panel(const PairClasses& classes, int64_t rows, int64_t b) noexcept {
  const TensorView& view = classes.view;
  const bool batched = view.rank == 3;
  PairPanel panel;
  panel.classes = static_cast<const uint8_t*>(view.data) + (batched ? b * view.strides[0] : 0);
  panel.query_stride = view.strides[batched ? 1 : 0];
  panel.key_stride = view.strides[batched ? 2 : 1];
  panel.width = rows;
  panel.stride = pair_stride(classes, rows);
  return panel;
}

}  // namespace relpos
