// What one fused call prepares before any block runs: terms expanded over windows of distances,
// rotary tables, and the packing of keys and values into tiles.
#pragma once

#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/workspace.h"
#include "kernels/block/kernels.h"
#include "kernels/block/log2.h"
#include "kernels/plan/bias_plan.h"
#include "kernels/plan/coordinate_tiles.h"
#include "kernels/plan/distance_tables.h"
#include "kernels/plan/pair_plan.h"
#include "kernels/plan/rotations.h"
#include "kernels/plan/row_shift.h"
#include "kernels/plan/unit_layout.h"
#include "kernels/problem.h"

namespace relpos {

// Up to here the rows of a group of heads read keys and values in place: packing would not pay.
inline constexpr int64_t kDirectRows = 16;
// At least the cells that the rows of a block read in kTilesAtATime tiles, in whole panels. A wider window
// slides, where it can: what is held are the cells that the next tiles read.
inline constexpr int64_t kSlidingCells = round_up(kTilesAtATime * kTile + kRows - 1, kTile) + kTile;

// Whether a forward pass reads the rows of keys and values in place.
bool reads_in_place(const Problem& p);

// A column table over its runs; rows past the last run, up to a multiple of kLanes, are zero.
struct ColumnPlan : TablePlan {
  int64_t factors_at = 0;  // where a packed tile holds c_j s2 log2(e) [kTile, padded rank]
};

class Plan {
 public:
  // `packs`: keys are packed even where their rows would be read in place.
  Plan(const Problem& problem, bool of_backward, Workspace& memory, bool packs = false)
      : Plan(problem, of_backward, memory, packs, tile_kernels(problem)) {}
  Plan(const Problem& problem, bool of_backward, Workspace& memory, bool packs,
       const Kernels& of_target);

  const Problem& p;
  const Kernels& kernels;
  const bool backward, direct;   // direct: a forward pass that reads rows in place
  const MatrixUnit* const unit;  // multiplies queries, keys and values; null: float32 products
  const int64_t D, Dp, Dv, Dvp, tiles;
  std::pair<int64_t, int64_t> range;  // distances that occur
  const Shifts shifts;
  const Rotations rotations;
  const CoordinateList coordinates;
  std::vector<BiasPlan> biases;
  std::vector<PairBiasPlan> pair_biases;
  std::vector<TablePlan> row_tables, pair_rows, value_tables;
  std::vector<ColumnPlan> columns;
  Buffer<float> query_added;  // [H, Dp], summed; empty: none
  Buffer<double> key_bias;    // [B or 1, H, tiles * kTile] times log2(e); empty: none
  int64_t key_bias_rows = 1;
  // Queries and keys are rounded to bfloat16 before they meet, as where a unit multiplied them.
  bool rounds = false;
  bool skips_tiles = false;  // a bias falls so far that the weights of whole tiles may underflow
  int64_t tile_floats = 0;   // of a packed tile
  UnitLayout pairs;          // of its keys and values, with a unit

  // A row [n] of queries or keys, rounded where the plan rounds.
  void round(float* row, int64_t n) const noexcept;
  // What sums of dscores times queries are multiplied by to be gradients of keys.
  double key_gradient_scale() const noexcept {
    return unit != nullptr && !rotations.decays() ? p.scale : kLn2;
  }
  // The most cells of a window that the distances of a block reach, and from one row's to the next's.
  int64_t most_cells(const ClassWindow& window) const noexcept;
  // The cells of a window that a block reads in tiles [t, t + count); where positions are consecutive.
  Cut cells_of_tiles(const ClassWindow& window, const Block& block, int64_t t, int64_t count) const;
  int64_t cell_stride(const ClassWindow& window) const noexcept {
    return round_up(most_cells(window) + 2 * kPad, kLanes);
  }
  // Floats of scratch that packing a tile takes.
  int64_t packing_floats() const noexcept {
    return kTile *
           (std::max(Dp, Dvp) + (unit == nullptr ? 0 : std::max(pairs.Dq(), pairs.Dvq()) / 2));
  }
  // Packs tile t of (b, kv head) into `memory` [tile_floats] and describes it. `positions` [kTile] is
  // written where positions are explicit; `rows` [packing_floats] is scratch.
  KeyTile pack_tile(int64_t b, int64_t kv_head, int64_t t, float* memory, int64_t* positions,
                    float* rows) const;
  // A tile's positions alone.
  void place(int64_t b, int64_t t, int64_t* positions, KeyTile& tile) const;

 private:
  // Rows of keys or values of a head, in place or loaded into `memory`, `stride` apart.
  struct FloatRows {
    const float* data;
    int64_t stride;
  };
  FloatRows key_rows(int64_t b, int64_t kv_head, int64_t first, int64_t count, float* memory) const;
  FloatRows value_rows(int64_t b, int64_t kv_head, int64_t first, int64_t count,
                       float* memory) const;
  void pack_rows(int64_t b, int64_t kv_head, int64_t first, int64_t count, float* memory,
                 float* rows, KeyTile& tile) const;
  // The same as pairs for the unit.
  void pack_pairs(int64_t b, int64_t kv_head, int64_t first, int64_t count, float* memory,
                  float* rows, KeyTile& tile) const;
  // Rows of keys or values in bfloat16, in place or in `to`, with zeros up to `stride`.
  struct HalfRows {
    const uint16_t* data;
    int64_t stride;
  };
  HalfRows narrow_rows(bool keys, int64_t b, int64_t kv_head, int64_t first, int64_t count,
                       float* rows, uint16_t* to) const;
  bool finite(const HalfRows& rows, int64_t count, int64_t n) const;
  void pack_values(int64_t b, int64_t kv_head, int64_t first, int64_t count, float* memory,
                   float* rows, KeyTile& tile) const;
  void pack_factors(int64_t b, int64_t kv_head, int64_t first, int64_t count, float* memory,
                    KeyTile& tile) const;
};

}  // namespace relpos
