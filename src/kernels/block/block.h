// The rows of a block, what they see, and the terms attached to them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "kernels/block/matrix_unit.h"
#include "kernels/block/pair_panel.h"
#include "kernels/block/panel.h"
#include "kernels/problem.h"

namespace relpos {

// Whether the rows of a dense mask are read by vectors: aligned elements one after another.
inline bool has_vector_rows(const TensorView& mask) noexcept {
  const auto size = static_cast<uintptr_t>(item_size(mask.dtype));
  return mask.strides[3] == 1 && mask.dtype != DType::kFloat64 &&
         (reinterpret_cast<uintptr_t>(mask.data) & (size - 1)) == 0;
}

struct Block {
  const Problem* problem = nullptr;
  const Kernels* kernels = nullptr;
  int64_t D = 0, Dp = 0, Dv = 0, Dvp = 0;  // head sizes, and rounded up to kLanes
  int64_t batch = 0;
  // Rows in use, those of one head at consecutive queries; the rest of the last group is zero rows
  // that see nothing.
  int rows = 0;
  int64_t head[kRows], index[kRows], position[kRows], lo[kRows], hi[kRows];
  int64_t first_position[kRows / kGroup],
      last_position[kRows / kGroup];  // lowest, highest of a group
  int64_t first_of_all, last_of_all;  // of all rows
  // Where the row of a dense mask starts that a row reads, in padded rows as in the last, and bytes of a
  // tile of it. In place: float32 that has_vector_rows().
  const std::byte* mask_row[kRows];
  int64_t mask_step = 0;
  bool mask_in_place = false;
  const uint64_t* words[kTilesAtATime] = {};  // seen_words() of tiles from words_from on
  int64_t words_from = 0;
  int64_t shift[kRows];       // of distances at which slopes are read (row_shift.h)
  double score_shift[kRows];  // what all scores of the row are less by, natural units
  bool shifted = false;       // a row's `shift` is not 0

  std::pair<int64_t, int64_t> range;  // distances of its visible pairs
  int64_t all_from = 0,
          all_to = 0;  // keys that every row sees, without regard to masks and padding
  float* q = nullptr;  // [kRows, Dp] rotated, times scale * log2(e)
  // The same in bfloat16 where a unit multiplies [kRows, Dq], zero rows beyond the last; and what their
  // products with keys are multiplied by, for they are not scaled themselves.
  const uint16_t* narrow_q = nullptr;
  const uint16_t* narrow_qt = nullptr;  // [Dp, unit_rows()], transposed (backward)
  int64_t Dq = 0, Dvq = 0;
  float score_scale = 1.0f;
  std::vector<Panel> scores;  // added to scores; gradient takes dscore
  std::vector<Ramp> ramps;
  std::vector<PairPanel> pairs;  // added to scores; gradient takes dscore
  // Added to the scores of one tile, row by row: [kTile] each, extra_stride apart; null: nothing.
  const float* extra = nullptr;
  int64_t extra_stride = kTile;
  const double* key_bias[kRows] = {};  // [Lk rounded up to kTile] times log2(e), or null
  double key_shift[kRows];             // taken from it
  std::vector<Panel> values;           // gradient takes weights; backward: cells add to dweight

  // What the rows see of tile t by a mask of tiles, a word for each; null: all of it. Holds for the tiles
  // that the driver has brought last.
  const uint64_t* seen_words(int64_t t) const noexcept {
    return problem->visible.tiles.given() ? words[t - words_from] : nullptr;
  }
  const std::byte* mask_tile(int row, int64_t t) const noexcept {
    return mask_row[row] + t * mask_step;
  }
  // Asks for what rows [first, end) read of a dense mask, and of classes of pairs, in tile t, in the second
  // level cache: they lie pages apart, where the hardware does not see them coming. Called a whole tile ahead, but not before
  // the products of queries and keys, which it would hold up (docs/kernels.md). Always inline: gcc drops
  // calls of a function that does nothing but fetch.
  __attribute__((always_inline)) void prefetch_pairs(int first, int end, int64_t t) const noexcept {
    const TensorView& mask = problem->visible.mask;
    if (t >= problem->tiles()) return;
    for (const PairPanel& panel : pairs) {
      for (int row = first; row < std::min(end, rows); ++row) {
        __builtin_prefetch(panel.bytes(index[row], t), 0, 2);
      }
    }
    if (!mask.given() || mask.strides[3] != 1) return;
    for (int row = first; row < end; ++row) {
      const std::byte* from = mask_tile(row, t);
      for (int64_t n = 0; n < mask_step; n += 64) __builtin_prefetch(from + n, 0, 2);
    }
  }
  // Rows that a unit sums over.
  int64_t unit_rows() const noexcept { return round_up(rows, kUnitDepth); }
};

// Calls f(head, first row, rows) for each run of rows of one head.
template <typename F>
void for_each_head(const Block& block, F&& f) {
  for (int row = 0; row < block.rows;) {
    int end = row + 1;
    while (end < block.rows && block.head[end] == block.head[row]) ++end;
    f(block.head[row], row, end - row);
    row = end;
  }
}

}  // namespace relpos
