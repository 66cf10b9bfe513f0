// What a plan writes out for a whole call, on all of its threads where it is long.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/parallel.h"
#include "kernels/problem.h"

namespace relpos {

// Calls f(from, to) over parts of [0, rows), or over all of them where waking threads would take longer.
// What is computed for a row may not depend on its part.
template <typename F>
void in_parts(const Problem& p, int64_t rows, int64_t numbers_of_row, F&& f) {
  constexpr int64_t kNumbers = 8192, kFew = 4 * kNumbers;
  if (p.threads == 1 || rows * numbers_of_row < kFew) return f(int64_t{0}, rows);
  const int64_t part = std::max<int64_t>(1, kNumbers / numbers_of_row);
  Stopper stopper(p.cancel);
  parallel_for((rows + part - 1) / part, p.threads, stopper,
               [&](int64_t n, int) { f(n * part, std::min(rows, (n + 1) * part)); });
  stopper.check();
}

// Calls f(row, from, to) for pieces [from, to) of `rows` rows of `size` numbers, divided likewise. Few
// enough numbers each to ask between them whether the call is cancelled.
template <typename F>
void in_pieces_of_rows(const Problem& p, int64_t rows, int64_t size, F&& f) {
  constexpr int64_t kMost = 4096;
  in_parts(p, rows * size, 1, [&](int64_t from, int64_t to) {
    while (from < to) {
      check_cancelled();
      const int64_t row = from / size, first = from % size;
      const int64_t count = std::min({kMost, size - first, to - from});
      f(row, first, first + count);
      from += count;
    }
  });
}

}  // namespace relpos
