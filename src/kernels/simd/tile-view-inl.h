// One tile as a block sees it: where it lies in the panels of the block's terms, for the SIMD target that
// includes this.
#if defined(RELPOS_TILE_VIEW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RELPOS_TILE_VIEW_INL_H_
#undef RELPOS_TILE_VIEW_INL_H_
#else
#define RELPOS_TILE_VIEW_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "base/buffer.h"
#include "kernels/block/block.h"
#include "kernels/block/key_tile.h"
#include "kernels/plan/coordinate_tiles.h"
#include "kernels/simd/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace relpos {
namespace HWY_NAMESPACE {
namespace {

// A tile cut into pieces of consecutive positions, none of which leaves a vector.
struct Pieces {
  int8_t end[kTileVectors];  // past the last piece of each vector
  int8_t lane[kTile];
  alignas(8) uint8_t bits[kTile][8];  // of a piece: its lanes
  int64_t position[kTile];

  explicit Pieces(const KeyTile& tile) {
    if (tile.run) return;
    int count = 0;
    for (int64_t c = 0; c < kTile; ++c) {
      const auto of_lane = static_cast<uint8_t>(1U << (c % kN % 8));
      if (c % kN == 0 || tile.positions[c] != tile.positions[c - 1] + 1) {
        lane[count] = static_cast<int8_t>(c % kN);
        std::fill_n(bits[count], 8, uint8_t{0});
        position[count++] = tile.positions[c];
      }
      bits[count - 1][c % kN / 8] |= of_lane;
      end[c / kN] = static_cast<int8_t>(count);
    }
  }
  HWY_INLINE hn::Mask<F> mask(int n) const { return hn::LoadMaskBits(F(), bits[n]); }
  // Where the vector that holds the piece starts among the cells of a row at position `query`, which has
  // the row's shift added. A piece is shorter than the pads, so that lanes before it stay inside.
  HWY_INLINE int64_t offset(const Panel& panel, int n, int64_t query) const {
    return std::max(panel.offset(position[n] - query), kLanes) - lane[n];
  }
};

// On which side of a panel's window a tile lies for all rows at positions first .. last (it is far for them),
// so that each reads one number for all of its keys.
enum class Side { kNone = -1, kLeft, kRight };
HWY_INLINE Side side_of(const KeyTile& tile, const Panel& panel, int64_t first, int64_t last) {
  if (panel.at != nullptr || panel.shift != nullptr || !tile.run) return Side::kNone;
  if (tile.first_position + kTile - 1 - first < panel.lo) return Side::kLeft;
  const bool right = tile.first_position - last >= panel.lo + panel.width;
  return right ? Side::kRight : Side::kNone;
}
HWY_INLINE int64_t pad_offset(const Panel& panel, Side side) {
  return side == Side::kLeft ? 0 : panel.width + kPad;
}

// One tile as a block sees it.
struct TileView {
  static constexpr size_t kMostFar = 32, kMostSums = 2;

  const Block& block;
  const KeyTile& tile;
  int64_t t;  // its number
  Pieces pieces;
  uint32_t far = 0;             // bit n: the tile is far for panel n of the scores and all rows
  const float* flat = nullptr;  // what rows add for those panels, where there are any
  bool only_flat = false;       // they add nothing else to scores
  // Where the sums of weights go instead of where those of all tiles do: [kRows, kLanes] of each value
  // panel, where the tile is far for all of them and all rows.
  float* sums[kMostSums] = {};

  TileView(const Block& b, const KeyTile& k, int64_t number)
      : block(b), tile(k), t(number), pieces(k) {
    for (size_t n = 0; n < std::min(b.scores.size(), kMostFar); ++n) add_far(n);
    // A ramp has a panel, which is never far.
    only_flat = std::popcount(far) == std::ssize(b.scores) && b.pairs.empty() &&
                b.key_bias[0] == nullptr && b.extra == nullptr;
    find_sums();
  }
  TileView(const TileView&) = delete;  // `flat` may point into it
  TileView& operator=(const TileView&) = delete;
  HWY_INLINE int64_t distance(int row, int64_t c) const {
    return (tile.run ? tile.first_position + c : tile.positions[c]) - block.position[row];
  }

 private:
  HWY_INLINE Side side(const Panel& panel) const {
    return side_of(tile, panel, block.first_of_all, block.last_of_all);
  }
  void add_far(size_t n) {
    const Panel& panel = block.scores[n];
    const Side where = panel.cells == nullptr ? Side::kNone : side(panel);
    if (where == Side::kNone) return;
    const float* cells =
        panel.far_cells == nullptr ? nullptr : panel.far_cells + static_cast<int>(where) * kRows;
    if (cells != nullptr && far == 0) {
      flat = cells;
    } else {
      for (int row = 0; row < block.rows; ++row) {
        const float cell =
            cells != nullptr ? cells[row]
                             : panel.gate_of(row) * panel.row_cells(row)[pad_offset(panel, where)];
        own_flat_[row] = far == 0 ? cell : flat[row] + cell;
      }
      std::fill(own_flat_ + block.rows, own_flat_ + round_up(block.rows, kGroup), 0.0f);
      flat = own_flat_;
    }
    far |= uint32_t{1} << n;
  }
  void find_sums() {
    const std::vector<Panel>& panels = block.values;
    if (panels.empty() || panels.size() > kMostSums || block.problem->dropout.active()) return;
    float* found[kMostSums] = {};
    for (size_t n = 0; n < panels.size(); ++n) {
      const Side where = side(panels[n]);
      if (where == Side::kNone || panels[n].far_sums == nullptr) return;
      found[n] = panels[n].far_sums + static_cast<int>(where) * kRows * kLanes;
    }
    std::copy_n(found, kMostSums, sums);
  }

  float own_flat_[kRows];
};

// side_of() for the rows of the group to which `row` belongs.
HWY_INLINE Side side_of(const TileView& view, const Panel& panel, int row) {
  const Block& block = view.block;
  return side_of(view.tile, panel, block.first_position[row / kGroup],
                 block.last_position[row / kGroup]);
}

// The query of a row and the keys of a tile by a panel's own coordinate.
HWY_INLINE int32_t own_query(const TileView& view, const Panel& panel, int row) {
  return panel.at->queries(view.block.batch)[view.block.index[row]];
}
HWY_INLINE const int32_t* own_keys(const TileView& view, const Panel& panel) {
  return panel.at->keys(view.block.batch, view.t);
}

// Whether a row reads a tile as kTile cells one after another.
HWY_INLINE bool is_run(const TileView& view, const Panel& panel) {
  if (panel.at == nullptr) return view.tile.run;
  return panel.at->kind(view.block.batch, view.t) == CoordinateTiles::kRun;
}
// Whether it reads one cell for all of the tile's keys.
HWY_INLINE bool is_flat(const TileView& view, const Panel& panel) {
  return panel.at != nullptr && panel.at->kind(view.block.batch, view.t) == CoordinateTiles::kFlat;
}
// The places of the tile's keys where these are few; else null.
HWY_INLINE const CoordinateTiles::Places* few_places(const TileView& view, const Panel& panel) {
  const int64_t b = view.block.batch;
  return panel.at->kind(b, view.t) == CoordinateTiles::kFew ? &panel.at->places(b, view.t)
                                                            : nullptr;
}
// Where the cells of a run start.
HWY_INLINE int64_t run_offset(const TileView& view, const Panel& panel, int row) {
  if (panel.at == nullptr) return panel.offset(row, view.distance(row, 0));
  return panel.offset(own_keys(view, panel)[0] - own_query(view, panel, row));
}

// Whether the rows of a group are all in use, at positions one after another.
HWY_INLINE bool are_run(const Block& block, int group) {
  const int last = group + kGroup - 1;
  return block.problem->positions.consecutive && last < block.rows &&
         block.position[last] - block.position[group] == kGroup - 1;
}

// The first cell that each row of a group reads in a tile that is a run or flat. Where the tile stands is
// found once: row by row, as run_offset() finds it, it takes 1.5 % of a forward pass with two such panels.
HWY_INLINE void first_cells(const TileView& view, const Panel& panel, int group,
                            const float* (&cells)[kGroup]) {
  const Block& block = view.block;
  const bool own = panel.at != nullptr;
  const int64_t first = view.distance(group, 0) - panel.lo + kPad;
  if (!own && panel.shift == nullptr && are_run(block, group) && first >= kGroup - 1 &&
      first <= panel.width + kPad) {  // each reads one cell earlier than the one before
    for (int r = 0; r < kGroup; ++r) cells[r] = panel.row_cells(group + r) + first - r;
    return;
  }
  const int64_t key = own ? own_keys(view, panel)[0] : 0;
  const int32_t* queries = own ? panel.at->queries(block.batch) : nullptr;
  for (int r = 0; r < kGroup; ++r) {
    const int row = std::min(group + r, block.rows - 1);
    const int64_t offset = own ? panel.offset(key - queries[block.index[row]])
                               : panel.offset(row, view.distance(row, 0));
    cells[r] = panel.row_cells(row) + offset;
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace relpos
HWY_AFTER_NAMESPACE();

#endif
