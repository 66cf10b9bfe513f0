// Tables over distances: which cells exist, and the products that row, column and value tables need.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/workspace.h"
#include "kernels/block/kernels.h"
#include "kernels/plan/coordinate_tiles.h"

namespace relpos {

// Cells [first, first + width) of a window.
struct Cut {
  int64_t first = 0, width = 0;

  int64_t end() const noexcept { return first + width; }
  Cut within(const Cut& other) const noexcept {
    const int64_t from = std::max(first, other.first);
    return {from, std::max<int64_t>(0, std::min(end(), other.end()) - from)};
  }
  bool operator==(const Cut&) const = default;
};

// Distances [lo, lo + width) with the class of each; outside lies one class on either side.
struct ClassWindow {
  int64_t lo = 0, width = 1;
  // Of cell c: start + step c, or where step is 0 classes[c].
  int64_t start = 0, step = 0;
  Buffer<int64_t> classes;  // [width], or empty
  int64_t left = ClassMap::kNone, right = ClassMap::kNone;

  ClassWindow() = default;
  // The map's own window, cut to the distances that occur.
  ClassWindow(const ClassMap& map, std::pair<int64_t, int64_t> range, Workspace& memory);
  // The class of distance lo + c, outside too.
  int64_t class_of(int64_t c) const noexcept {
    return c < 0 ? left : c >= width ? right : step != 0 ? start + step * c : classes[c];
  }
  // Writes `classes` where they follow from `step`.
  void write_classes(Workspace& memory);
  // Cut to a range of distances.
  Cut cut(std::pair<int64_t, int64_t> range) const noexcept {
    const int64_t first = std::clamp<int64_t>(range.first - lo, 0, width - 1);
    return {first, std::clamp<int64_t>(range.second - lo, first, width - 1) - first + 1};
  }
};

// The classes of a window, left and right of it included, with neighbours of one class as one run.
struct Runs {
  int64_t lo = 0, count = 0;
  Buffer<int32_t> index;    // run of distance lo + n; the first and last hold outside too
  Buffer<int64_t> classes;  // of each run, then kNone up to a multiple of kLanes

  Runs() = default;
  Runs(const ClassWindow& window, Workspace& memory);
  static int64_t count_of(const ClassWindow& window);
  int64_t operator()(int64_t distance) const noexcept {
    return index[std::clamp<int64_t>(distance - lo, 0, index.size() - 1)];
  }
  // to[n] = the run of distance farthest - n, less `first`.
  void write_down(int64_t farthest, int64_t size, int64_t first, int32_t* to) const noexcept;
};

// A row, column or value table, an entry for each cell of its window, or for each run of it.
struct TablePlan {
  ClassWindow window;
  Runs runs;                         // empty: an entry is a cell
  const int64_t* classes = nullptr;  // of the entries; kNone: a row of zeros
  int64_t entries = 0;
  int64_t heads = 1;  // 1: shared
  int64_t rank = 0, padded_rank = 0;
  bool finite = true;
  Buffer<float> rows;        // [heads, entries, padded_rank]
  Buffer<float> added;       // to the vectors that meet the rows, [H, padded_rank]; empty: none
  Buffer<float> transposed;  // [heads, panels of kTile entries, rank, kTile]
  Buffer<float> gated;       // [heads, kPad + width + kPad] of a gated bias; else empty
  double scale = 1.0;        // of a row or column table's product, natural units
  const CoordinateTiles* at = nullptr;  // what a row table is read by; null: positions

  // `by_runs`: entries are runs, padded with zero rows to a multiple of kLanes.
  TablePlan(const Problem& p, ClassWindow over, const TermData& table, bool by_runs, bool with_rows,
            bool with_transposed, Workspace& memory);
  // A row table of rank 1, whose rows read its cells times a number of their own. Only where it is finite:
  // a factor of 0 takes what is not. `with_sums`: gradients are summed.
  TablePlan(const Problem& p, ClassWindow over, const TermData& table, bool with_sums,
            Workspace& memory);
  bool is_gated() const noexcept { return gated.size() > 0; }
  int64_t gated_stride() const noexcept { return window.width + 2 * kPad; }
  // Whether a comes before b where the entries that read a row are in the order of their classes, falling
  // where those of the window fall: so sums are read forwards, as prefetchers expect.
  bool before(int64_t a, int64_t b) const noexcept {
    const int64_t last = (by_runs() ? runs.count : entries) - 1;
    return classes[0] <= classes[last] ? classes[a] < classes[b] : classes[a] > classes[b];
  }
  // The entries that read a row, those of one row together and in ascending order, rows as of before().
  std::vector<int64_t> by_class() const;
  bool by_runs() const noexcept { return runs.count > 0; }
  int64_t entry(int64_t cell) const noexcept { return by_runs() ? runs.index[cell + 1] : cell; }
  // The cells that products of cells `seen` are computed of: from a multiple of kLanes on.
  Cut multiplied(const Cut& seen) const noexcept {
    if (by_runs()) return seen;
    return {seen.first / kLanes * kLanes, seen.width + seen.first % kLanes};
  }
  int64_t panels() const noexcept { return (entries + kTile - 1) / kTile; }
  // The rows of a head's entries, from `first` on.
  const float* head_rows(int64_t h, int64_t first) const noexcept {
    return rows.get() + ((heads == 1 ? 0 : h) * entries + first) * padded_rank;
  }
  const float* head_panels(int64_t h) const noexcept {
    return transposed.get() + (heads == 1 ? 0 : h) * panels() * rank * kTile;
  }
};

// The cells that each group of a block's rows reads, in whole vectors: with whole blocks, products would
// also be computed for the corners of the parallelogram of queries and distances, a twelfth of them all
// where 1000 keys are seen.
class GroupCuts {
 public:
  GroupCuts() { std::fill_n(cuts_, kRows / kGroup, Cut{0, INT64_MAX}); }  // all
  GroupCuts(const Block& block, const TablePlan& table);

  // Calls f(first row, rows, cells) for runs of groups that read the same ones among `all`.
  template <typename F>
  void for_each_run(int rows, const Cut& all, F&& f) const {
    for (int row = 0; row < rows;) {
      const Cut own = all.within(cuts_[row / kGroup]);
      int end = row + kGroup;
      while (end < rows && all.within(cuts_[end / kGroup]) == own) end += kGroup;
      end = std::min(end, rows);
      if (own.width > 0) f(row, end - row, own);
      row = end;
    }
  }
  // Calls f(cells, first row, rows) for runs of cells that the same groups read.
  template <typename F>
  void for_each_strip(int rows, const Cut& all, F&& f) const {
    constexpr int64_t kStrip = int64_t{2} * kGroup;
    for (int64_t c = all.first; c < all.end();) {
      const auto [row, count] = rows_of(rows, {c, kStrip});
      int64_t end = c + kStrip;
      while (end < all.end() && rows_of(rows, {end, kStrip}) == std::pair{row, count})
        end += kStrip;
      end = std::min(end, all.end());
      if (count > 0) f(Cut{c, end - c}, row, count);
      c = end;
    }
  }

 private:
  // From the first to the last row of the groups that read some of these cells.
  std::pair<int, int> rows_of(int rows, const Cut& cells) const;

  Cut cuts_[kRows / kGroup];
};

// What one chunk sums for a table's gradient: [heads of the group, entries, padded rank]. Null: it is not
// wanted.
struct TableSums {
  float* cells = nullptr;

  static int64_t size(const TablePlan& table, int64_t group) noexcept {
    return (table.heads == 1 ? 1 : group) * table.entries * table.padded_rank;
  }
  float* at(const TablePlan& table, int64_t g, int64_t first) const noexcept {
    return cells + ((table.heads == 1 ? 0 : g) * table.entries + first) * table.padded_rank;
  }
  // += C^T A for entries `cut` of head g of the group: cells C [rows, width] of a Panel, 0 where a row
  // reads none, and factors A [rows, lda].
  void add(const Kernels& kernels, const TablePlan& table, int64_t g, const Cut& cut,
           const GroupCuts& cuts, int rows, const float* cells_of_rows, int64_t stride,
           const float* a, int64_t lda) const;
  // Entries of by_class() into the gradient of `data`, times `scale`.
  void reduce(const TablePlan& table, const TermData& data, int64_t kv_head, int64_t group,
              double scale, std::span<const int64_t> entries, std::vector<double>& gradient) const;
};

// rows [0, rows) of T = A R^T over the cells `at` of a table's window, from `cells` on and `stride`
// apart: what the rows read of them, and maybe up to a multiple of kLanes. A is [rows, padded rank]. Where
// entries are cells, `at` starts at a multiple of kLanes, and the cells of every row at one of their size.
void table_products(const Kernels& kernels, const TablePlan& table, int64_t head, int rows,
                    const float* a, int64_t lda, const Cut& at, const GroupCuts& cuts, float* cells,
                    int64_t stride);
// o[rows, N] (+)= C R: cells C [rows] of a Panel, which are entries `cut` of a head, 0 where a row reads
// none. Without `accumulate`, rows that read nothing keep what o holds. Long sums are cut into chains by the
// number of entries: where it depends on the whole batch, so do the last bits.
void add_table_rows(const Kernels& kernels, const TablePlan& table, int64_t head, const Cut& cut,
                    const GroupCuts& cuts, int rows, const float* cells, int64_t stride, float* o,
                    int64_t ldo, bool accumulate);
// In what follows `cells` are those of a Panel: a row starts with its left pad, the next is `stride`
// apart. They are the cells `at` of a table's window.
//
// Fills the pads beside the cells, where these reach an end of the window.
void fill_pads(const Kernels& kernels, const TablePlan& table, int rows, const Cut& at,
               float* cells, int64_t stride);
// Sums neighbouring cells of one run in place, so that cells are entries, and says which.
Cut fold_runs(const TablePlan& table, int rows, const Cut& at, float* cells, int64_t stride);
// Folds the pads of accumulated cells into the cells at the window's ends, where a class continues
// outside and the cells reach so far.
void fold_pads(const Kernels& kernels, const TablePlan& table, int rows, const Cut& at,
               float* cells, int64_t stride);
// c[M, N] (+)= A B, A at a[m * row_stride + k * k_stride], shapes and strides as of Kernels::gemm.
// Where B is not finite, its NaN and Inf reach only the rows whose factor is not 0, and no bit of the
// others depends on them.
void multiply(const Kernels& kernels, bool finite, int64_t M, int64_t N, int64_t K, const float* a,
              int64_t row_stride, int64_t k_stride, const float* b, int64_t ldb, float* c,
              int64_t ldc, bool accumulate);

}  // namespace relpos
