// Tables of terms in double, and sums in double whose rounding stays within the bound of
// docs/accuracy.md. For reference_head.h and head_gradient.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/parallel.h"
#include "base/zeros.h"
#include "kernels/problem.h"
#include "relpos/terms.h"

namespace relpos::reference {

// A table or vector of a term in double, multiplied. Shared tables have one head.
struct Loaded {
  std::vector<double> values;
  int64_t heads = 1, rows = 0, columns = 0;

  explicit Loaded(const TermData& data) {
    const TensorView& view = data.view;
    if (!view.given()) return;
    heads = view.rank == 3 ? view.shape[0] : 1;
    rows = view.shape[view.rank - 2];
    columns = view.shape[view.rank - 1];
    values.reserve(view.numel());
    CancelTicks tick;
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t m = 0; m < rows; ++m) {
        tick(columns);
        for (int64_t c = 0; c < columns; ++c) {
          const int64_t at = view.rank == 3 ? view.offset({h, m, c}) : view.offset({m, c});
          values.push_back(view.load(at) * data.multiplier);
        }
      }
    }
  }
  int64_t at(int64_t h, int64_t m) const { return ((heads == 1 ? 0 : h) * rows + m) * columns; }
  const double* row(int64_t h, int64_t m) const { return values.data() + at(h, m); }
};

// In chains of kTile products, as those of the kernels.
inline double dot(const double* x, const double* y, int64_t n) {
  double sum = 0.0;
  for (int64_t first = 0; first < n; first += kTile) {
    double part = 0.0;
    for (int64_t d = first; d < std::min(n, first + kTile); ++d) part += x[d] * y[d];
    sum += part;
  }
  return sum;
}

inline void add_scaled(double* y, double factor, const double* x, int64_t n) {
  for (int64_t d = 0; d < n; ++d) y[d] += factor * x[d];
}

// Sums whose rounding stays within the bound of docs/accuracy.md are of two kinds. These are of chains:
// parts are added to `recent`, at most kTile of them before each join().
struct Chained {
  std::vector<double> sum, recent;

  explicit Chained(int64_t n) : sum(zeros(n)), recent(zeros(n)) {}
  void join() {
    in_pieces(std::ssize(sum), [&](int64_t from, int64_t to) {
      add_scaled(sum.data() + from, 1.0, recent.data() + from, to - from);
      std::fill(recent.begin() + from, recent.begin() + to, 0.0);
    });
  }
};

// The others are slower, and take any number of parts: n sums, then what Knuth's two-sums lost of each,
// until settle() adds it.
inline void split(std::vector<double>& sums) { add_zeros(sums, 2 * std::ssize(sums)); }

// sums[at..] += factor x[0..n).
inline void accumulate(std::vector<double>& sums, int64_t at, double factor, const double* x,
                       int64_t n) {
  double* sum = sums.data() + at;
  double* lost = sum + sums.size() / 2;
  for (int64_t d = 0; d < n; ++d) {
    const double part = factor * x[d], before = sum[d], after = before + part;
    const double rounded = after - before;
    lost[d] += (before - (after - rounded)) + (part - rounded);
    sum[d] = after;
  }
}
inline void accumulate(std::vector<double>& sums, int64_t at, double x) {
  accumulate(sums, at, 1.0, &x, 1);
}

// Leaves the n sums alone. What a sum beyond all floats lost is NaN, and counts as nothing.
inline void settle(std::vector<double>& sums) {
  const size_t n = sums.size() / 2;
  CancelTicks tick;
  for (size_t d = 0; d < n; ++d) {
    tick();
    if (std::isfinite(sums[d])) sums[d] += sums[n + d];
  }
  sums.resize(n);
}

}  // namespace relpos::reference
