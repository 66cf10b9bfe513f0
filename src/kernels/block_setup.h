// Fills a Block: rows, rotated queries, and the cells that its terms read.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/plan.h"

namespace relpos {

// One worker's rows. Constructed once per call, reused for every block.
class BlockScratch {
 public:
  BlockScratch(const Plan& plan, const TileKernels& kernels);

  Block block;

  void begin(int64_t batch);
  void add_row(int64_t h, int64_t i) { plan_.add_row(block, h, i); }
  // Loads and rotates the queries of all rows, and what score terms read but for row tables' cells.
  void load_queries();
  // Brings row tables' cells to what tiles [t, t + count) read, `count` at most kTilesAtATime. Those
  // that were there already move: a window that slides with the tiles stays in cache and needs no
  // memory that grows with the keys.
  void slide(int64_t t, int64_t count);
  // Scales the queries for a tile, where a rotation decays with distance.
  void decay_queries(const KeyTile& tile);

  // Distances cut to a window: first cell and number of cells.
  struct Cut {
    int64_t first = 0, width = 0;
    int64_t end() const noexcept { return first + width; }
    bool operator==(const Cut&) const = default;
  };
  // Of all visible pairs of the block.
  Cut cut(const Window& window) const { return cut(window, range_); }
  // Of row table n, for tiles [t, t + count): whole panels where it slides, else of all the block's.
  Cut reach(size_t n, int64_t t, int64_t count) const;
  // The most cells that cut() may return, and the distance between the cells of two rows.
  static int64_t max_cut(const Plan& plan, const Window& window);
  static int64_t cell_stride(const Plan& plan, const Window& window);
  // The same of a row table.
  static int64_t row_stride(const Plan& plan, const TablePlan& table);
  int padded_rows() const noexcept { return static_cast<int>(round_up(block.rows, kGroup)); }

  struct RowTableState {
    Cut cut;               // of the cells that are there
    Buffer<float> factor;  // [kRows, padded rank] times s1 log2(e)
    Buffer<float> cells;   // [kRows, row_stride]
  };
  std::vector<RowTableState> row_tables;

  static int64_t floats(const Plan& plan);  // of scratch, for the memory formula

 protected:
  // How many of the last cells of a cut are the first of the next one; 0: none, or it goes back.
  static int64_t shared(const Cut& from, const Cut& to) noexcept {
    const bool follows = from.first <= to.first && to.first < from.end() && from.end() <= to.end();
    return follows ? from.end() - to.first : 0;
  }
  // Whether a row table's cells are not all there at once.
  static bool slides(const Plan& plan, const TablePlan& table);
  static void move_shared(const Cut& from, const Cut& to, int rows, float* cells, int64_t stride);
  // Where a rotation decays: the queries scaled for a tile [kRows, Dp], and by what [Dp].
  Buffer<float> decayed_, decay_;

 private:
  static Cut cut(const Window& window, std::pair<int64_t, int64_t> range);
  // Points the rows at what biases of distances and of keys add to their scores.
  void attach_biases();

  const Plan& plan_;
  const TileKernels& kernels_;
  Buffer<float> raw_, q_;
  std::pair<int64_t, int64_t> range_;
};

}  // namespace relpos
