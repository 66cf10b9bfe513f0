#include "kernels/tables.h"

#include <algorithm>

#include "base/parallel.h"

namespace relpos {

Window::Window(const ClassMap& map, std::pair<int64_t, int64_t> range) {
  const int64_t first = map.first_distance(), last = map.last_distance();
  lo = std::clamp(range.first, first, last);
  width = std::clamp(range.second, lo, last) - lo + 1;
  classes.reserve(static_cast<size_t>(width));
  CancelTicks tick;
  for (int64_t c = 0; c < width; ++c) {
    tick();
    classes.push_back(map(lo + c));
  }
  left = map(first - 1);
  right = map(last + 1);
}

Runs::Runs(const Window& window) : lo(window.lo - 1) {
  const auto add = [&](int64_t m) {
    if (classes.empty() || classes.back() != m) classes.push_back(m);
    index.push_back(static_cast<int32_t>(classes.size() - 1));
  };
  add(window.left);
  for (const int64_t m : window.classes) add(m);
  add(window.right);
}

TablePlan::TablePlan(Window over, const TermData& table, bool by_runs, bool with_rows,
                     bool with_transposed)
    : window(std::move(over)) {
  const TensorView& view = table.view;
  const bool per_head = view.rank == 3;
  heads = per_head ? view.shape[0] : 1;
  rank = view.shape[per_head ? 2 : 1];
  padded_rank = round_up(rank, kLanes);
  classes = window.classes;
  if (by_runs) {
    runs = Runs(window);
    classes = runs.classes;
    const int64_t padded = round_up(static_cast<int64_t>(classes.size()), kLanes);
    classes.resize(static_cast<size_t>(padded), ClassMap::kNone);
  }
  const int64_t count = entries(), panel_size = rank * kTile;
  if (with_rows) rows = Buffer<float>(heads * count * padded_rank);
  if (with_transposed) transposed = Buffer<float>(heads * panels() * panel_size);
  std::fill_n(transposed.get(), transposed.size(), 0.0f);
  std::vector<float> row(static_cast<size_t>(padded_rank), 0.0f);
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t c = 0; c < count; ++c) {
      if (c % kTile == 0) check_cancelled();
      const int64_t m = classes[static_cast<size_t>(c)];
      for (int64_t x = 0; x < rank; ++x) {
        const int64_t at = m == ClassMap::kNone ? 0
                           : per_head           ? view.offset({h, m, x})
                                                : view.offset({m, x});
        row[static_cast<size_t>(x)] =
            m == ClassMap::kNone ? 0.0f : static_cast<float>(view.load(at) * table.multiplier);
      }
      finite = finite && tile_kernels().finite(row.data(), rank);
      if (with_rows) {
        std::copy(row.begin(), row.end(), rows.get() + (h * count + c) * padded_rank);
      }
      if (with_transposed) {
        float* panel = transposed.get() + (h * panels() + c / kTile) * panel_size + c % kTile;
        for (int64_t x = 0; x < rank; ++x) panel[x * kTile] = row[static_cast<size_t>(x)];
      }
    }
  }
}

int64_t TablePlan::floats() const noexcept {
  return rows.size() + transposed.size() + 2 * window.width +
         (runs.index.empty()
              ? 0
              : static_cast<int64_t>(runs.index.size() + 2 * runs.classes.size()) + 2 * entries());
}

void table_products(const TileKernels& kernels, const TablePlan& table, int64_t head, int rows,
                    const float* a, int64_t lda, int64_t first, int64_t width, float* cells,
                    int64_t stride) {
  const float* panels = table.head_panels(head);
  alignas(64) float product[kRows * (kTile + kLanes)];
  constexpr int64_t kProduct = kTile + kLanes;  // a vector may be read from the last entry
  const int64_t last = first + width - 1;
  for (int64_t c = first; c <= last;) {
    const int64_t panel = table.entry(c) / kTile;
    int64_t end = std::min(last + 1, c + (panel + 1) * kTile - table.entry(c));
    while (end <= last && table.entry(end) / kTile == panel) ++end;
    kernels.gemm(rows, kTile, table.rank, a, lda, 1, panels + panel * table.rank * kTile, kTile,
                 product, kProduct, false);
    for (int r = 0; r < rows; ++r) {
      const float* from = product + r * kProduct;
      float* to = cells + r * stride + (c - first);
      if (table.runs.index.empty()) {
        std::copy(from + (c - panel * kTile), from + (end - panel * kTile), to);
      } else {
        kernels.expand(from - panel * kTile, &table.runs.index[static_cast<size_t>(c + 1)], end - c,
                       to);
      }
    }
    c = end;
  }
}

void fill_pads(const TablePlan& table, int rows, int64_t width, float* cells, int64_t stride) {
  for (int r = 0; r < rows; ++r) {
    float* row = cells + r * stride;
    std::fill_n(row, kPad, table.window.left == ClassMap::kNone ? 0.0f : row[kPad]);
    std::fill_n(row + kPad + width, kPad,
                table.window.right == ClassMap::kNone ? 0.0f : row[kPad + width - 1]);
  }
}

void fold_pads(const TablePlan& table, int rows, int64_t first, int64_t width, float* cells,
               int64_t stride) {
  const Window& window = table.window;
  const auto fold = [&](const float* pads, float* into) {
    for (int r = 0; r < rows; ++r) {
      float sum = 0.0f;
      for (int64_t c = 0; c < kPad; ++c) sum += pads[r * stride + c];
      into[r * stride] += sum;
    }
  };
  if (window.left != ClassMap::kNone && first == 0) fold(cells, cells + kPad);
  if (window.right != ClassMap::kNone && first + width == window.width) {
    fold(cells + kPad + width, cells + kPad + width - 1);
  }
}

std::pair<int64_t, int64_t> fold_runs(const TablePlan& table, int rows, int64_t first,
                                      int64_t width, float* cells, int64_t stride) {
  if (table.runs.index.empty()) return {first, width};
  const int32_t* index = &table.runs.index[static_cast<size_t>(first + 1)];
  const int64_t count = index[width - 1] - index[0] + 1;
  for (int r = 0; r < rows && count < width; ++r) {
    float* row = cells + r * stride + kPad;
    for (int64_t c = 0; c < width;) {
      const int64_t to = index[c] - index[0];
      float sum = row[c];
      for (++c; c < width && index[c] - index[0] == to; ++c) sum += row[c];
      row[to] = sum;
    }
  }
  return {index[0], count};
}

void multiply(const TileKernels& kernels, bool finite, int64_t M, int64_t N, int64_t K,
              const float* a, int64_t row_stride, int64_t k_stride, const float* b, int64_t ldb,
              float* c, int64_t ldc, bool accumulate) {
  if (finite) {
    kernels.gemm(M, N, K, a, row_stride, k_stride, b, ldb, c, ldc, accumulate);
    return;
  }
  const Buffer<float> clean(K * ldb);
  for (int64_t n = 0; n < K * ldb; ++n) clean[n] = std::isfinite(b[n]) ? b[n] : 0.0f;
  kernels.gemm(M, N, K, a, row_stride, k_stride, clean.get(), ldb, c, ldc, accumulate);
  for (int64_t k = 0; k < K; ++k) {
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
