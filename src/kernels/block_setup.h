// Fills a Block: rows, rotated queries, and the cells that its terms read.
#pragma once

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
  // Loads and rotates the queries of all rows and computes the cells that score terms read.
  void load_queries();
  // Scales the queries for a tile, where a rotation decays with distance.
  void decay_queries(const KeyTile& tile);

  // Distances of the block's visible pairs, cut to a window: first cell and number of cells.
  struct Cut {
    int64_t first = 0, width = 1;
  };
  Cut cut(const Window& window) const;
  // The most cells that cut() may return, and the distance between the cells of two rows.
  int64_t max_cut(const Window& window) const;
  int64_t cell_stride(const Window& window) const;
  int padded_rows() const noexcept { return static_cast<int>(round_up(block.rows, kGroup)); }

  struct RowTableState {
    Cut cut;
    Buffer<float> factor;  // [kRows, padded rank] times s1 log2(e)
    Buffer<float> cells;   // [kRows, cell_stride]
  };
  std::vector<RowTableState> row_tables;

  static int64_t floats(const Plan& plan);  // of scratch, for the memory formula

 protected:
  // Where a rotation decays: the queries scaled for a tile [kRows, Dp], and by what [Dp].
  Buffer<float> decayed_, decay_;

 private:
  const Plan& plan_;
  const TileKernels& kernels_;
  Buffer<float> raw_, q_;
  std::pair<int64_t, int64_t> range_;
};

}  // namespace relpos
