#include "kernels/plan/distance_tables.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>

#include "base/parallel.h"
#include "kernels/block/load_rows.h"
#include "kernels/block/long_product.h"
#include "kernels/plan/table_cells.h"
#include "kernels/plan/write_out.h"

namespace relpos {

ClassWindow::ClassWindow(const ClassMap& map, std::pair<int64_t, int64_t> range,
                         Workspace& memory) {
  const int64_t first = map.first_distance(), last = map.last_distance();
  lo = std::clamp(range.first, first, last);
  width = std::clamp(range.second, lo, last) - lo + 1;
  left = map(first - 1);
  right = map(last + 1);
  if (map.run_classes_.empty()) {
    start = map(lo);
    step = map.reversed_ ? -1 : 1;
    return;
  }
  classes = memory.take<int64_t>(width);
  CancelTicks tick;
  for (int64_t c = 0; c < width; ++c) {
    tick();
    classes[c] = map(lo + c);
  }
}

void ClassWindow::write_classes(Workspace& memory) {
  if (classes.size() > 0) return;
  classes = memory.take<int64_t>(width);
  in_pieces(width, [&](int64_t from, int64_t to) {
    for (int64_t c = from; c < to; ++c) classes[c] = start + step * c;
  });
}

int64_t Runs::count_of(const ClassWindow& window) {
  int64_t count = 1;
  in_pieces(window.width + 1, [&](int64_t from, int64_t to) {
    for (int64_t c = from; c < to; ++c) count += window.class_of(c) != window.class_of(c - 1);
  });
  return count;
}

Runs::Runs(const ClassWindow& window, Workspace& memory)
    : lo(window.lo - 1),
      count(count_of(window)),
      index(memory.take<int32_t>(window.width + 2)),
      classes(memory.take<int64_t>(round_up(count, kLanes))) {
  std::fill_n(classes.get(), classes.size(), ClassMap::kNone);
  int32_t run = 0;
  CancelTicks tick;
  for (int64_t c = -1; c <= window.width; ++c) {
    tick();
    if (c >= 0 && window.class_of(c) != window.class_of(c - 1)) ++run;
    index[c + 1] = run;
    classes[run] = window.class_of(c);
  }
}

void Runs::write_down(int64_t farthest, int64_t size, int64_t first, int32_t* to) const noexcept {
  const int64_t last = index.size() - 1, at = farthest - lo;
  const auto less = static_cast<int32_t>(first);
  const int64_t above = std::clamp<int64_t>(at - last, 0, size);
  const int64_t within = std::clamp<int64_t>(at + 1, above, size);
  std::fill_n(to, above, index[last] - less);
  for (int64_t n = above; n < within; ++n) to[n] = index[at - n] - less;
  std::fill_n(to + within, size - within, index[0] - less);
}

namespace {

// A table as [1, heads, classes, rank].
TensorView four_axes(const TensorView& table) {
  const int first = table.rank - 2;
  const int64_t heads = first == 1 ? table.shape[0] : 1, step = first == 1 ? table.strides[0] : 0;
  return {table.data,
          table.dtype,
          {1, heads, table.shape[first], table.shape[first + 1]},
          {0, step, table.strides[first], table.strides[first + 1]}};
}

// Rows `classes` of a head of it, multiplied; zeros for kNone.
void load_rows(const TensorView& table, double multiplier, int64_t head, const int64_t* classes,
               int64_t count, int64_t padded, float* rows) {
  const int64_t rank = table.shape[3];
  for (int64_t n = 0; n < count; ++n) {
    float* row = rows + n * padded;
    if (classes[n] == ClassMap::kNone) {
      std::fill_n(row, padded, 0.0f);
      continue;
    }
    load_row(table, 0, head, classes[n], rank, padded, row);
    for (int64_t x = 0; multiplier != 1.0 && x < rank; ++x) {  // rounded once
      row[x] = static_cast<float>(table.at({0, head, classes[n], x}) * multiplier);
    }
  }
}

}  // namespace

TablePlan::TablePlan(const Problem& p, ClassWindow over, const TermData& table, bool by_runs,
                     bool with_rows, bool with_transposed, Workspace& memory)
    : window(std::move(over)) {
  const TensorView view = four_axes(table.view);
  heads = view.shape[1];
  rank = view.shape[3];
  padded_rank = round_up(rank, kLanes);
  if (by_runs) {
    runs = Runs(window, memory);
  } else {
    window.write_classes(memory);
  }
  classes = by_runs ? runs.classes.get() : window.classes.get();
  entries = by_runs ? runs.classes.size() : window.width;
  if (with_rows) rows = memory.take<float>(heads * entries * padded_rank);
  if (with_transposed) transposed = memory.take<float>(heads * panels() * rank * kTile);
  constexpr int64_t kCopied = 4;  // numbers that are copied in the time of one that is computed
  std::atomic<bool> all_finite{true};
  in_parts(p, heads * panels(), kTile * rank / kCopied, [&](int64_t from, int64_t to) {
    const Buffer<float> copy(with_rows ? 0 : kTile * padded_rank);
    for (int64_t n = from; n < to; ++n) {
      check_cancelled();
      const int64_t h = n / panels(), first = n % panels() * kTile;
      const int64_t count = std::min(kTile, entries - first);
      float* own = with_rows ? rows.get() + (h * entries + first) * padded_rank : copy.get();
      load_rows(view, table.multiplier, h, classes + first, count, padded_rank, own);
      const bool finite_rows = tile_kernels().finite(own, count * padded_rank);
      if (!finite_rows) all_finite.store(false, std::memory_order_relaxed);
      if (!with_transposed) continue;
      float* panel = transposed.get() + n * rank * kTile;
      tile_kernels().transpose(own, padded_rank, count, rank, panel);
      for (int64_t x = 0; x < rank; ++x) {
        std::fill(panel + x * kTile + round_up(count, kLanes), panel + (x + 1) * kTile, 0.0f);
      }
    }
  });
  finite = all_finite.load(std::memory_order_relaxed);
}

TablePlan::TablePlan(const Problem& p, ClassWindow over, const TermData& table, bool with_sums,
                     Workspace& memory)
    : window(std::move(over)) {
  const TensorView view = four_axes(table.view);
  TermData numbers = table;
  numbers.view = TensorView(view.data, view.dtype, {view.shape[1], view.shape[2]},
                            {view.strides[1], view.strides[2]});
  heads = view.shape[1];
  rank = padded_rank = 1;
  entries = window.width;
  if (with_sums) {
    window.write_classes(memory);
    classes = window.classes.get();
  }
  const int64_t stride = gated_stride();
  gated = memory.take<float>(heads * stride);
  std::atomic<bool> all_finite{true};
  in_pieces_of_rows(p, heads, stride, [&](int64_t h, int64_t from, int64_t to) {
    float* cells = gated.get() + h * stride + from;
    write_cells(window, numbers, h, from - kPad, to - from, CellUnit::kNatural, cells);
    const bool finite_cells =
        std::all_of(cells, cells + (to - from), [](float x) { return std::isfinite(x); });
    if (!finite_cells) all_finite.store(false, std::memory_order_relaxed);
  });
  finite = all_finite.load(std::memory_order_relaxed);
}

std::vector<int64_t> TablePlan::by_class() const {
  std::vector<int64_t> order;
  CancelTicks tick;
  for (int64_t n = 0; n < entries; ++n) {
    tick();
    if (classes[n] != ClassMap::kNone) order.push_back(n);
  }
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    tick();
    return before(a, b);
  });
  return order;
}

GroupCuts::GroupCuts(const Block& block, const TablePlan& table) : GroupCuts() {
  const TokenPositions& at = block.problem->positions;
  const bool one_head = block.head[0] == block.head[block.rows - 1];
  if (!at.consecutive || !one_head || table.at != nullptr || table.by_runs()) return;
  const int64_t first = at.key(block.batch, 0);
  for (int group = 0; group < block.rows; group += kGroup) {
    int64_t low = INT64_MAX, high = INT64_MIN;
    for (int row = group; row < std::min(group + kGroup, block.rows); ++row) {
      if (block.lo[row] >= block.hi[row]) continue;
      low = std::min(low, first + block.lo[row] - block.position[row]);
      high = std::max(high, first + block.hi[row] - 1 - block.position[row]);
    }
    Cut& own = cuts_[group / kGroup] =
        low <= high ? table.multiplied(table.window.cut({low, high})) : Cut{};
    own.width = round_up(own.width, kLanes);
  }
}

std::pair<int, int> GroupCuts::rows_of(int rows, const Cut& cells) const {
  int begin = 0, end = (rows + kGroup - 1) / kGroup;
  while (begin < end && cells.within(cuts_[begin]).width == 0) ++begin;
  while (end > begin && cells.within(cuts_[end - 1]).width == 0) --end;
  return {begin * kGroup, std::min(rows, end * kGroup) - begin * kGroup};
}

void TableSums::add(const Kernels& kernels, const TablePlan& table, int64_t g, const Cut& cut,
                    const GroupCuts& cuts, int rows, const float* cells_of_rows, int64_t stride,
                    const float* a, int64_t lda) const {
  if (cells == nullptr) return;
  const bool finite = kernels.finite(a, rows * lda);
  cuts.for_each_strip(rows, cut, [&](const Cut& own, int row, int count) {
    multiply(kernels, finite, own.width, table.padded_rank, count,
             cells_of_rows + row * stride + kPad + (own.first - cut.first), 1, stride,
             a + row * lda, lda, at(table, g, own.first), table.padded_rank, true);
  });
}

void TableSums::reduce(const TablePlan& table, const TermData& data, int64_t kv_head, int64_t group,
                       double scale, std::span<const int64_t> entries,
                       std::vector<double>& gradient) const {
  const int64_t heads = table.heads == 1 ? 1 : group;
  const int64_t classes = data.view.shape[data.view.rank == 3 ? 1 : 0];
  const double by = scale * data.multiplier;
  for (int64_t g = 0; g < heads; ++g) {
    const int64_t h = table.heads == 1 ? 0 : kv_head * group + g;
    for (const int64_t entry : entries) {
      const float* cell = at(table, g, entry);
      double* out = gradient.data() + (h * classes + table.classes[entry]) * table.rank;
      for (int64_t d = 0; d < table.rank; ++d) out[d] += static_cast<double>(cell[d]) * by;
    }
  }
}

namespace {

// table_products() where entries are runs, whose products are computed once and copied into their cells.
void run_products(const Kernels& kernels, const TablePlan& table, const float* panels, int rows,
                  const float* a, int64_t lda, const Cut& at, float* cells, int64_t stride) {
  constexpr int64_t kProduct = kTile + kLanes;  // a vector may be read from the last entry
  alignas(64) float product[kRows * kProduct];
  CancelTicks tick;
  for (int64_t c = at.first; c < at.end();) {
    tick(kTile);
    const int64_t panel = table.entry(c) / kTile;
    const int64_t entries = std::min(kTile, table.entries - panel * kTile);
    int64_t end = std::min(at.end(), c + (panel + 1) * kTile - table.entry(c));
    while (end < at.end() && table.entry(end) / kTile == panel) ++end;
    kernels.gemm(rows, entries, table.rank, a, lda, 1, panels + panel * table.rank * kTile, kTile,
                 product, kProduct, false);
    for (int r = 0; r < rows; ++r) {
      kernels.expand(product + r * kProduct - panel * kTile, &table.runs.index[c + 1], end - c,
                     cells + r * stride + (c - at.first));
    }
    c = end;
  }
}

}  // namespace

void table_products(const Kernels& kernels, const TablePlan& table, int64_t head, int rows,
                    const float* a, int64_t lda, const Cut& at, const GroupCuts& cuts, float* cells,
                    int64_t stride) {
  const float* panels = table.head_panels(head);
  if (table.by_runs()) {
    run_products(kernels, table, panels, rows, a, lda, at, cells, stride);
    return;
  }
  CancelTicks tick;
  for (int64_t c = at.first; c < at.end();) {
    tick(kTile);
    const int64_t first = c / kTile * kTile;
    const Cut panel{c, std::min(at.end(), first + kTile) - c};
    cuts.for_each_run(rows, panel, [&](int row, int count, const Cut& own) {
      kernels.gemm(count, round_up(own.width, kLanes), table.rank, a + row * lda, lda, 1,
                   panels + first * table.rank + (own.first - first), kTile,
                   cells + row * stride + (own.first - at.first), stride, false);
    });
    c = panel.end();
  }
}

void add_table_rows(const Kernels& kernels, const TablePlan& table, int64_t head, const Cut& cut,
                    const GroupCuts& cuts, int rows, const float* cells, int64_t stride, float* o,
                    int64_t ldo, bool accumulate) {
  const int64_t rank = table.padded_rank;
  const auto add = [&](int row, int count, const Cut& own) {
    multiply(kernels, table.finite, count, rank, own.width,
             cells + row * stride + kPad + (own.first - cut.first), stride, 1,
             table.head_rows(head, own.first), rank, o + row * ldo, ldo, accumulate);
  };
  if (table.finite) {
    cuts.for_each_run(rows, cut, add);
  } else {
    add(0, rows, cut);  // what is not finite is looked for once
  }
}

void fill_pads(const Kernels& kernels, const TablePlan& table, int rows, const Cut& at,
               float* cells, int64_t stride) {
  static constexpr auto kOnes = [] {
    std::array<float, kPad> ones{};
    ones.fill(1.0f);
    return ones;
  }();
  constexpr float kZero = 0.0f;
  // Each row of a pad is one number: scale() writes it by vectors.
  const auto fill = [&](int64_t pad, int64_t from, bool none) {
    const float* of_rows = none ? &kZero : cells + from;
    kernels.scale(rows, kPad, kOnes.data(), 0, of_rows, none ? 0 : stride, cells + pad, stride);
  };
  if (at.first == 0) fill(0, kPad, table.window.left == ClassMap::kNone);
  if (at.end() == table.window.width) {
    fill(kPad + at.width, kPad + at.width - 1, table.window.right == ClassMap::kNone);
  }
}

void fold_pads(const Kernels& kernels, const TablePlan& table, int rows, const Cut& at,
               float* cells, int64_t stride) {
  const ClassWindow& window = table.window;
  const auto fold = [&](int64_t pad, int64_t into) {
    kernels.add_row_sums(rows, kPad, cells + pad, stride, cells + into, stride);
  };
  if (window.left != ClassMap::kNone && at.first == 0) fold(0, kPad);
  if (window.right != ClassMap::kNone && at.end() == window.width) {
    fold(kPad + at.width, kPad + at.width - 1);
  }
}

Cut fold_runs(const TablePlan& table, int rows, const Cut& at, float* cells, int64_t stride) {
  if (!table.by_runs()) return at;
  const int32_t* index = &table.runs.index[at.first + 1];
  const int64_t count = index[at.width - 1] - index[0] + 1;
  for (int r = 0; r < rows && count < at.width; ++r) {
    float* row = cells + r * stride + kPad;
    for (int64_t c = 0; c < at.width;) {
      const int64_t to = index[c] - index[0];
      float sum = row[c];
      for (++c; c < at.width && index[c] - index[0] == to; ++c) sum += row[c];
      row[to] = sum;
    }
  }
  return {index[0], count};
}

void multiply(const Kernels& kernels, bool finite, int64_t M, int64_t N, int64_t K, const float* a,
              int64_t row_stride, int64_t k_stride, const float* b, int64_t ldb, float* c,
              int64_t ldc, bool accumulate) {
  if (finite) {
    long_product(kernels, M, N, K, a, row_stride, k_stride, b, ldb, c, ldc, accumulate);
    return;
  }
  const Buffer<float> clean(K * ldb);
  in_pieces(K * ldb, [&](int64_t from, int64_t to) {
    for (int64_t n = from; n < to; ++n) clean[n] = std::isfinite(b[n]) ? b[n] : 0.0f;
  });
  long_product(kernels, M, N, K, a, row_stride, k_stride, clean.get(), ldb, c, ldc, accumulate);
  CancelTicks tick;
  for (int64_t k = 0; k < K; ++k) {
    tick(N);
    for (int64_t n = 0; n < N; ++n) {
      const float value = b[k * ldb + n];
      if (std::isfinite(value)) continue;
      for (int64_t m = 0; m < M; ++m) {
        const float factor = a[m * row_stride + k * k_stride];
        if (factor != 0.0f) c[m * ldc + n] += factor * value;
      }
    }
  }
}

}  // namespace relpos
