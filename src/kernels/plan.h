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

namespace relpos {

inline constexpr double kLog2e = 1.4426950408889634;
inline constexpr double kLn2 = 0.6931471805599453;

// Distances [lo, lo + width) with the class of each; outside lies one class on either side.
struct Window {
  int64_t lo = 0, width = 1;
  std::vector<int64_t> classes;  // [width]
  int64_t left = ClassMap::kNone, right = ClassMap::kNone;

  Window() = default;
  // The map's own window, cut to the distances that occur.
  Window(const ClassMap& map, std::pair<int64_t, int64_t> range);
};

struct BiasPlan {
  Window window;
  Buffer<float> cells;  // [H, kPad + width + kPad] times log2(e); empty: nothing read by distance
  Buffer<float> peaks;  // [H, peaks_per_head]: the largest of each kTile cells, where tiles skip
  bool ramp = false;    // slopes are evaluated pair by pair, not expanded
  int64_t row_size() const noexcept { return window.width + 2 * kPad; }
  int64_t peaks_per_head() const noexcept { return (row_size() + kTile - 1) / kTile; }
};

// A row or value table over its window. Heads is 1 for a shared table.
struct TablePlan {
  Window window;
  int64_t heads = 1, rank = 0, padded_rank = 0;
  bool finite = true;
  Buffer<float> rows;        // [heads, width, padded_rank]
  Buffer<float> transposed;  // [heads, panels of kTile columns, rank, kTile]
  double scale = 1.0;        // of a row table's product, natural units
  int64_t panels() const noexcept { return (window.width + kTile - 1) / kTile; }
  const float* head_rows(int64_t h) const noexcept {
    return rows.get() + (heads == 1 ? 0 : h) * window.width * padded_rank;
  }
};

// The classes of a window, left and right of it included, with neighbours of one class as one run.
struct Runs {
  int64_t lo = 0;
  std::vector<int32_t> index;    // run of distance lo + n; the first and last hold outside too
  std::vector<int64_t> classes;  // of each run

  Runs() = default;
  explicit Runs(const Window& window);
  int64_t operator()(int64_t distance) const noexcept {
    const auto last = static_cast<int64_t>(index.size()) - 1;
    return index[static_cast<size_t>(std::clamp<int64_t>(distance - lo, 0, last))];
  }
};

// A column table over its runs; rows past the last run, up to a multiple of kLanes, are zero.
struct ColumnPlan {
  Runs runs;
  TablePlan table;         // a cell of its window is a run
  int64_t factors_at = 0;  // where a packed tile holds c_j s2 log2(e) [kTile, padded rank]
};

class Plan {
 public:
  Plan(const Problem& problem, bool backward);

  const Problem& p;
  const int64_t D, Dp, Dv, Dvp, tiles;
  std::pair<int64_t, int64_t> range;  // distances that occur
  std::vector<BiasPlan> biases;
  std::vector<TablePlan> row_tables, value_tables;
  std::vector<ColumnPlan> columns;
  Buffer<float> key_bias;  // [B or 1, H, tiles * kTile] times log2(e); empty: none
  int64_t key_bias_rows = 1;
  bool skips_tiles = false;  // a bias falls so far that the weights of whole tiles may underflow

  // Row r of a tensor as floats, zero padded to `padded`.
  static void load_row(const TensorView& view, int64_t b, int64_t h, int64_t i, int64_t n,
                       int64_t padded, float* row);
  static void store_row(const TensorView& view, int64_t b, int64_t h, int64_t i, int64_t n,
                        const float* row);
  void rotate_query(int64_t b, int64_t i, float* row) const { rotate(true, b, i, row, 1.0f); }
  void unrotate_query(int64_t b, int64_t i, float* row) const { rotate(true, b, i, row, -1.0f); }
  void rotate_key(int64_t b, int64_t j, float* row) const { rotate(false, b, j, row, 1.0f); }
  void unrotate_key(int64_t b, int64_t j, float* row) const { rotate(false, b, j, row, -1.0f); }

  int64_t bytes() const noexcept;  // of everything that the plan holds
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
  struct Rotary {
    const Rotation* rotation;
    Buffer<float> q_cos, q_sin, k_cos, k_sin;  // [rows, L, pairs]
  };
  void expand_bias(const DistanceBias& term);
  void find_peaks();
  static TablePlan expand_table(Window window, const TermData& table, bool rows, bool transposed);
  void pack_factors(int64_t b, int64_t kv_head, int64_t t, KeyTile& tile, float* memory) const;
  void rotate(bool query, int64_t b, int64_t i, float* row, float direction) const;

  bool backward_;
  int64_t tile_floats_ = 0;
  std::vector<Rotary> rotary_;
};

// rows [0, rows) of T = A R^T over cells [first, first + width) of a table's window, with pads: the
// cells of a Panel, `stride` apart. A is [rows, padded rank].
void table_products(const TileKernels& kernels, const TablePlan& table, int64_t head, int rows,
                    const float* a, int64_t lda, int64_t first, int64_t width, float* cells,
                    int64_t stride);
// Folds the pads of accumulated cells into the window's ends, where a class continues outside.
void fold_pads(const TablePlan& table, int rows, int64_t width, float* cells, int64_t stride);
// c[M, N] += a^T or a times b, skipping zeros of a: for tables or rows that hold NaN or Inf.
void skip_zero_product(int64_t M, int64_t N, int64_t K, const float* a, int64_t row_stride,
                       int64_t k_stride, const float* b, int64_t ldb, float* c, int64_t ldc);
bool all_finite(const float* x, int64_t n) noexcept;

}  // namespace relpos
