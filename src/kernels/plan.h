// What one fused call prepares before any block runs: terms expanded over windows of distances,
// rotary tables, and the packing of keys and values into tiles.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/parallel.h"
#include "kernels/block.h"
#include "kernels/problem.h"
#include "kernels/shift.h"
#include "kernels/tables.h"

namespace relpos {

// Up to here the rows of a group of heads read keys and values in place: packing would not pay.
inline constexpr int64_t kDirectRows = 16;
// Tiles that a block takes before the next ones are packed.
inline constexpr int64_t kTilesAtATime = 8;

// Whether a forward pass reads the rows of keys and values in place.
bool reads_in_place(const Problem& p);

// The table of a distance bias, or its slopes: a term that has both has two of these.
struct BiasPlan {
  size_t term = 0;      // of Terms::biases
  bool sloped = false;  // read at a distance less the shift of its row (shift.h)
  Window window;        // without classes where sloped
  Buffer<float> cells;  // [H, kPad + width + kPad] times log2(e); empty: nothing read by distance
  Buffer<float> peaks;  // [H, peaks_per_head]: the largest of each kTile cells, where tiles skip
  bool ramp = false;    // slopes are evaluated pair by pair in every block, not expanded
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
  // `packs`: keys are packed even where their rows would be read in place.
  Plan(const Problem& problem, bool backward, bool packs = false);

  const Problem& p;
  const int64_t D, Dp, Dv, Dvp, tiles;
  const bool direct;                  // a forward pass that reads rows in place
  std::pair<int64_t, int64_t> range;  // distances that occur
  const Shifts shifts;
  std::vector<BiasPlan> biases;
  std::vector<TablePlan> row_tables, value_tables;
  std::vector<ColumnPlan> columns;
  Buffer<float> query_added;  // [H, Dp], summed; empty: none
  Buffer<double> key_bias;    // [B or 1, H, tiles * kTile] times log2(e); empty: none
  int64_t key_bias_rows = 1;
  // Of each dim, empty where nothing decays. A query and a key of a decaying rotation are scaled to
  // meet at the first key of the key's tile: key_j exp((pos_j - first) ld) and, per tile,
  // query_i exp((first - pos_i) ld), which no distance overflows that the score itself does not.
  std::vector<double> log_decay;
  bool skips_tiles = false;  // a bias falls so far that the weights of whole tiles may underflow

  // Row (b, h, i) of float32 that kernels can read, and the next ones at strides[2]; null: none such.
  static const float* rows_in_place(const TensorView& view, int64_t b, int64_t h, int64_t i);
  // Row r of a tensor as floats, zero padded to `padded`.
  static void load_row(const TensorView& view, int64_t b, int64_t h, int64_t i, int64_t n,
                       int64_t padded, float* row);
  static void store_row(const TensorView& view, int64_t b, int64_t h, int64_t i, int64_t n,
                        const float* row);
  bool rotates() const noexcept { return !rotary_.empty(); }
  void rotate_query(int64_t b, int64_t i, float* row) const { rotate(true, b, i, row, 1.0f); }
  void unrotate_query(int64_t b, int64_t i, float* row) const { rotate(true, b, i, row, -1.0f); }
  void rotate_key(int64_t b, int64_t j, float* row) const { rotate(false, b, j, row, 1.0f); }
  void unrotate_key(int64_t b, int64_t j, float* row) const { rotate(false, b, j, row, -1.0f); }

  // What rotate_query has scaled row i for: the position where it decays to no power of its own.
  int64_t query_anchor(int64_t b, int64_t i) const {
    return p.positions.query(b, i / kRows * kRows);
  }
  // row [D] times exp(distance log_decay).
  void decay(int64_t distance, float* row) const;
  int64_t bytes() const noexcept;  // of everything that the plan holds
  // True where something must be done before or after each tile.
  bool by_tile() const noexcept { return !columns.empty() || skips_tiles || !log_decay.empty(); }
  // Floats that pack_tile writes for one tile.
  int64_t tile_floats() const noexcept { return tile_floats_; }
  // Packs tile t of (b, kv head) into `memory` (tile_floats) and describes it. `positions` [kTile] is
  // written where positions are explicit; `row` [max(Dp, Dvp)] is scratch.
  KeyTile pack_tile(int64_t b, int64_t kv_head, int64_t t, float* memory, int64_t* positions,
                    float* row) const;

  // [first, last) tiles that any row of the block sees.
  std::pair<int64_t, int64_t> tile_range(const Block& block) const;
  // Adds a row to a block: head, position and interval.
  void add_row(Block& block, int64_t h, int64_t i) const;

 private:
  // Cosines and sines [positions, pairs]: query (b, i) reads row queries_at + b Lq + i where batch
  // rows differ, queries_at + i where they do not; keys alike.
  struct Rotary {
    const Rotation* rotation;
    Buffer<float> cos, sin;
    int64_t queries_at, keys_at, q_rows, k_rows;

    void allot(int64_t rows) {
      cos = Buffer<float>(rows * rotation->dims / 2);
      sin = Buffer<float>(rows * rotation->dims / 2);
    }
  };
  Rotary tabulate(const Rotation& rotation) const;
  Rotary tabulate_axes(const Rotation& rotation) const;
  void expand_bias(size_t n);
  void expand_key_biases();
  void sum_query_added();
  void find_peaks();
  void pack_factors(int64_t b, int64_t kv_head, int64_t t, KeyTile& tile, float* memory) const;
  void rotate(bool query, int64_t b, int64_t i, float* row, float direction) const;

  bool backward_;
  int64_t tile_floats_ = 0;
  std::vector<Rotary> rotary_;
};

}  // namespace relpos
