// How keys, values and queries lie for a unit of bfloat16 products.
#pragma once

#include <cstdint>

#include "base/buffer.h"
#include "kernels/block/matrix_unit.h"
#include "kernels/problem.h"

namespace relpos {

// Pairs as numbers of 32 bits: a tile's, in floats.
struct UnitLayout {
  int64_t D, Dv;  // of a head
  bool backward;

  int64_t Dq() const noexcept { return round_up(D, kUnitDepth); }
  int64_t Dvq() const noexcept { return round_up(Dv, kUnitDepth); }
  int64_t keys() const noexcept { return Dq() / 2 * kTile; }  // transposed
  int64_t rows_of_keys() const noexcept {                     // for dq
    return backward ? kTile / 2 * round_up(D, kUnitRows) : 0;
  }
  int64_t values() const noexcept {
    return backward ? Dvq() / 2 * kTile : kTile / 2 * round_up(Dv, kUnitRows);
  }
  int64_t tile() const noexcept { return keys() + rows_of_keys() + values(); }
};

// At least the Euclidean norm of each row, and of what it was before it was rounded.
float largest_norm(const uint16_t* rows, int64_t stride, int64_t count, int64_t n);

}  // namespace relpos
