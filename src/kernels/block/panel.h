// What terms read by distance add to the scores of a block: every additive term of a tile is read as
// kTile floats at a pointer, every gradient of one is added to kTile floats at a pointer.
#pragma once

#include <cstdint>

#include "base/buffer.h"
#include "kernels/block/sizes.h"

namespace relpos {

class CoordinateTiles;

// A window of distances, one cell each: cells [kPad][width][kPad], so that any tile of consecutive
// keys is kTile cells at one offset, wherever it lies.
struct Panel {
  int64_t lo = 0, width = 0;
  // Rows of cells start `stride` apart with their left pad.
  int64_t stride = 0;
  const float* cells = nullptr;     // read; null: nothing to read
  float* gradient = nullptr;        // added to; null: nothing to add
  const int64_t* row_of = nullptr;  // the row of cells that a row of the block reads; null: its own
  bool takes_turns = false;         // row r adds to row r % kGroup of the gradient, else to r
  bool once = false;                // one tile of a block writes each inner cell of the gradient
  const int64_t* shift = nullptr;   // per row, taken from its distances; null: nothing
  const CoordinateTiles* at = nullptr;  // what it is read by; null: positions
  // Of tiles that lie left or right of the window for all rows of a block: the number that a row reads
  // there [2, kRows], null: it is read from the pad; and sums in lanes of what it adds there
  // [2, kRows, kLanes], null: it is added to the pad. Rows of pads lie pages apart.
  const float* far_cells = nullptr;
  float* far_sums = nullptr;
  // [kRows]: what the cells of a row are multiplied by as it reads them, and what it adds to the gradient;
  // null: 1. The cells are finite then. And sums in lanes of what the row's numbers take [kRows, kLanes],
  // dscores times cells; null: not wanted.
  const float* gate = nullptr;
  float* gate_sums = nullptr;

  float gate_of(int row) const noexcept { return gate == nullptr ? 1.0f : gate[row]; }
  const float* row_cells(int row) const noexcept {
    return cells + (row_of == nullptr ? row : row_of[row]) * stride;
  }
  float* row_gradient(int row) const noexcept {
    return gradient + (takes_turns ? row % kGroup : row) * stride;
  }
  // far_cells of `rows` rows and of those that fill their last group, which get the last row's.
  void write_far_cells(int rows, float* to) const noexcept {
    for (int row = 0; row < round_up(rows, kGroup); ++row) {
      const int own = row < rows ? row : rows - 1;
      to[row] = gate_of(own) * row_cells(own)[0];
      to[kRows + row] = gate_of(own) * row_cells(own)[kPad + width];
    }
  }
  int64_t offset(int64_t distance) const noexcept {
    const int64_t cell = distance - lo + kPad;
    return cell < 0 ? 0 : cell > width + kPad ? width + kPad : cell;
  }
  int64_t offset(int row, int64_t distance) const noexcept {
    return offset(distance - shift_of(row));
  }
  int64_t shift_of(int row) const noexcept { return shift == nullptr ? 0 : shift[row]; }
};

// past * min(delta, 0) + future * max(delta, 0), less its value at the row's shift: for distances too
// far apart for a window, and for rows that see far keys on both sides.
struct Ramp {
  int64_t bias = 0;                                     // of Plan::biases
  double past[kRows] = {}, future[kRows] = {};          // times log2(e)
  double shift[kRows] = {};                             // the value that is taken off
  double past_sum[kRows] = {}, future_sum[kRows] = {};  // gradients: sum of dscore * delta

  double operator()(int row, int64_t delta) const noexcept {
    return (delta < 0 ? past[row] : future[row]) * static_cast<double>(delta) - shift[row];
  }
};

}  // namespace relpos
