// Tables over distances: which cells exist, and the products that row, column and value tables need.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "kernels/block.h"

namespace relpos {

// Distances [lo, lo + width) with the class of each; outside lies one class on either side.
struct Window {
  int64_t lo = 0, width = 1;
  std::vector<int64_t> classes;  // [width]
  int64_t left = ClassMap::kNone, right = ClassMap::kNone;

  Window() = default;
  // The map's own window, cut to the distances that occur.
  Window(const ClassMap& map, std::pair<int64_t, int64_t> range);
  // The class of distance lo + c, outside too.
  int64_t class_of(int64_t c) const noexcept {
    return c < 0 ? left : c >= width ? right : classes[static_cast<size_t>(c)];
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

// A row, column or value table, an entry for each cell of its window, or for each run of it.
struct TablePlan {
  Window window;
  Runs runs;                     // empty: an entry is a cell
  std::vector<int64_t> classes;  // of the entries; kNone: a row of zeros
  int64_t heads = 1;             // 1: shared
  int64_t rank = 0, padded_rank = 0;
  bool finite = true;
  Buffer<float> rows;        // [heads, entries, padded_rank]
  Buffer<float> transposed;  // [heads, panels of kTile entries, rank, kTile]
  double scale = 1.0;        // of a row or column table's product, natural units

  TablePlan() = default;
  // `by_runs`: entries are runs, padded with zero rows to a multiple of kLanes.
  TablePlan(Window over, const TermData& table, bool by_runs, bool with_rows, bool with_transposed);
  int64_t entries() const noexcept { return static_cast<int64_t>(classes.size()); }
  int64_t entry(int64_t cell) const noexcept {
    return runs.index.empty() ? cell : runs.index[static_cast<size_t>(cell + 1)];
  }
  int64_t panels() const noexcept { return (entries() + kTile - 1) / kTile; }
  const float* head_rows(int64_t h) const noexcept {
    return rows.get() + (heads == 1 ? 0 : h) * entries() * padded_rank;
  }
  const float* head_panels(int64_t h) const noexcept {
    return transposed.get() + (heads == 1 ? 0 : h) * panels() * rank * kTile;
  }
  int64_t floats() const noexcept;  // of everything that it holds
};

// rows [0, rows) of T = A R^T over cells [first, first + width) of a table's window, from `cells` on
// and `stride` apart. A is [rows, padded rank].
void table_products(const TileKernels& kernels, const TablePlan& table, int64_t head, int rows,
                    const float* a, int64_t lda, int64_t first, int64_t width, float* cells,
                    int64_t stride);
// In what follows `cells` are those of a Panel: a row starts with its left pad, the next is `stride`
// apart. They are cells [first, first + width) of a table's window.
//
// Fills the pads beside the cells.
void fill_pads(const TablePlan& table, int rows, int64_t width, float* cells, int64_t stride);
// Sums neighbouring cells of one run in place, so that cells are entries, and says which.
std::pair<int64_t, int64_t> fold_runs(const TablePlan& table, int rows, int64_t first,
                                      int64_t width, float* cells, int64_t stride);
// Folds the pads of accumulated cells into the cells at the window's ends, where a class continues
// outside and the cells reach so far.
void fold_pads(const TablePlan& table, int rows, int64_t first, int64_t width, float* cells,
               int64_t stride);
// c[M, N] (+)= A B, A at a[m * row_stride + k * k_stride], shapes and strides as of TileKernels::gemm.
// Where B is not finite, its NaN and Inf reach only the rows whose factor is not 0, and no bit of the
// others depends on them.
void multiply(const TileKernels& kernels, bool finite, int64_t M, int64_t N, int64_t K,
              const float* a, int64_t row_stride, int64_t k_stride, const float* b, int64_t ldb,
              float* c, int64_t ldc, bool accumulate);

}  // namespace relpos
