// What one fused call prepares before any block is computed: terms written out over windows of
// distances, rotary tables, and the packing of keys and values into tiles.
#pragma once

#include <utility>
#include <vector>

#include "kernels/problem.h"
#include "kernels/shift.h"
#include "kernels/tables.h"
#include "kernels/terms/rotation.h"
#include "kernels/workspace.h"

namespace relpos {

// A group of heads with at most so many rows reads keys and values in place: packing would cost more.
inline constexpr int64_t kDirectRows = 16;
// How many tiles a block processes before the next ones are packed.
inline constexpr int64_t kTilesAtATime = 8;

// Whether a forward pass reads the rows of keys and values in place.
bool reads_in_place(const Problem& p);

// The table of a distance bias, or its slopes; a term with both has two of these.
struct BiasPlan {
  int64_t term = 0;     // of Terms::biases
  bool sloped = false;  // read at the distance minus the shift of the row (shift.h)
  Window window;        // without classes where sloped
  Buffer<float> cells;  // [H, kPad + width + kPad] times log2(e); empty: nothing read by distance
  Buffer<float> peaks;  // [H, peaks_per_head]: largest of each kTile cells, where tiles are skipped
  bool ramp = false;    // slopes are evaluated for each pair in every block, not written out

  int64_t row_size() const noexcept { return window.width + 2 * kPad; }
  int64_t peaks_per_head() const noexcept { return (row_size() + kTile - 1) / kTile; }
};

// A column table over its runs; rows past the last run, up to a multiple of kLanes, are zero.
struct ColumnPlan {
  TablePlan table;
  int64_t factors_at = 0;  // where a packed tile holds c_j s2 log2(e) [kTile, padded rank]
};

class Plan {
 public:
  // `packs`: keys are packed even if their rows could be read in place.
  Plan(const Problem& problem, bool backward, Workspace& memory, bool packs = false,
       const Kernels& of_target = tile_kernels());

  const Problem& p;
  const Kernels& kernels;
  const bool backward, direct;  // direct: a forward pass that reads rows in place
  const int64_t D, Dp, Dv, Dvp, tiles;
  std::pair<int64_t, int64_t> range;  // distances that occur
  const Shifts shifts;
  const Rotations rotations;
  std::vector<BiasPlan> biases;
  std::vector<TablePlan> row_tables, value_tables;
  std::vector<ColumnPlan> columns;
  Buffer<float> query_added;  // [H, Dp], summed; empty: none
  Buffer<double> key_bias;    // [B or 1, H, tiles * kTile] times log2(e); empty: none
  int64_t key_bias_rows = 1;
  bool skips_tiles = false;  // a bias falls so far that the weights of whole tiles may underflow
  int64_t tile_floats = 0;   // of a packed tile

  // True if a term needs work before or after each tile.
  bool by_tile() const noexcept { return !columns.empty() || skips_tiles || rotations.decays(); }
  // The largest number of a window's cells that a block reads, and the stride between its rows.
  int64_t most_cells(const Window& window) const noexcept;
  int64_t cell_stride(const Window& window) const noexcept {
    return round_up(most_cells(window) + 2 * kPad, kLanes);
  }
  // Packs tile t of (b, kv head) into `memory` [tile_floats] and describes it. `positions` [kTile] is
  // written where positions are explicit; `rows` [kTile, max(Dp, Dvp)] is scratch.
  KeyTile pack_tile(int64_t b, int64_t kv_head, int64_t t, float* memory, int64_t* positions,
                    float* rows) const;
  // Only the positions of a tile.
  void place(int64_t b, int64_t t, int64_t* positions, KeyTile& tile) const;

 private:
  // Rows of keys or values of a head, in place or loaded into `memory`, `stride` apart.
  struct Rows {
    const float* data;
    int64_t stride;
  };
  Rows key_rows(int64_t b, int64_t kv_head, int64_t first, int64_t count, float* memory) const;
  Rows value_rows(int64_t b, int64_t kv_head, int64_t first, int64_t count, float* memory) const;
  void pack_values(int64_t b, int64_t kv_head, int64_t first, int64_t count, float* memory,
                   float* rows, KeyTile& tile) const;
  void pack_factors(int64_t b, int64_t kv_head, int64_t first, int64_t count, float* memory,
                    KeyTile& tile) const;
};

}  // namespace relpos
