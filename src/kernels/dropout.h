// Dropout as a pure function of (seed, row, column): the same in every path, tile order and thread.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/threefry.h"

namespace relpos {

// The key of Threefry4x32 holds the seed, the batch row and the head (both below 2^32), its counter the
// query and a number for each four columns, 64 bits each: no two pairs of a call share a word, no two
// seeds a key, and a pair's word depends on no size of the call. The four words of a counter belong to
// columns 16 apart, so that in lanes neighbours lie side by side.
class Dropout {
 public:
  Dropout() = default;
  Dropout(double p, uint64_t seed)
      : active_(p > 0.0),
        seed_(seed),
        threshold_(static_cast<uint32_t>(std::min(std::round(p * 4294967296.0), 4294967295.0))),
        keep_scale_(p < 1.0 ? 1.0 / (1.0 - p) : 0.0) {}

  bool active() const noexcept { return active_; }
  // What a kept weight is multiplied by, 1 / (1 - p).
  double keep_scale() const noexcept { return keep_scale_; }
  // Words below it are dropped.
  uint32_t threshold() const noexcept { return threshold_; }

  // Where this call is a piece of a larger one: the larger one's number of head 0, of each query and of
  // each key; no numbers: they are the call's own.
  void place(int64_t first_head, std::vector<int64_t> rows, const std::vector<int64_t>& columns);
  int64_t row(int64_t i) const noexcept {
    return rows_.empty() ? i : rows_[static_cast<size_t>(i)];
  }
  // Of the keys [j, j + 64), j a multiple of 64, the last tile filled up: the counters and which of
  // their words; null where key j is column first_column() + j.
  struct Columns {
    const uint32_t *low = nullptr, *high = nullptr, *word = nullptr;
  };
  Columns columns(int64_t j) const noexcept {
    if (low_.empty()) return {};
    return {low_.data() + j, high_.data() + j, word_.data() + j};
  }
  int64_t first_column() const noexcept { return first_column_; }

  Threefry4x32::Words key(int64_t batch, int64_t head) const noexcept {
    return {low(seed_), high(seed_), static_cast<uint32_t>(batch),
            static_cast<uint32_t>(head + first_head_)};
  }
  // The counter of the columns 16 apart from `column` on, in the same 64.
  static Threefry4x32::Words counter(int64_t row, int64_t column) noexcept {
    const auto wide = static_cast<uint64_t>(row);
    const auto at = static_cast<uint64_t>(column / 64 * 16 + column % 16);
    return {low(at), high(at), low(wide), high(wide)};
  }
  bool keeps(int64_t batch, int64_t head, int64_t i, int64_t j) const noexcept {
    const int64_t column = columns_.empty() ? first_column_ + j : columns_[static_cast<size_t>(j)];
    const Threefry4x32::Words words =
        Threefry4x32::words(counter(row(i), column), key(batch, head));
    return words[column / 16 % 4] >= threshold_;
  }

 private:
  static uint32_t low(uint64_t x) noexcept { return static_cast<uint32_t>(x); }
  static uint32_t high(uint64_t x) noexcept { return static_cast<uint32_t>(x >> 32); }

  bool active_ = false;
  uint64_t seed_ = 0;
  uint32_t threshold_ = 0;
  double keep_scale_ = 1.0;
  int64_t first_head_ = 0, first_column_ = 0;
  std::vector<int64_t> rows_, columns_;
  std::vector<uint32_t> low_, high_, word_;  // of columns_, a whole number of tiles
};

inline void Dropout::place(int64_t first_head, std::vector<int64_t> rows,
                           const std::vector<int64_t>& columns) {
  first_head_ = first_head;
  rows_ = std::move(rows);
  if (columns.empty()) return;
  bool aligned = columns.front() % 64 == 0;
  for (size_t j = 0; j < columns.size() && aligned; ++j) {
    aligned = columns[j] == columns.front() + static_cast<int64_t>(j);
  }
  if (aligned) {
    first_column_ = columns.front();
    return;
  }
  columns_ = columns;
  const size_t whole = (columns.size() + 63) / 64 * 64;
  for (std::vector<uint32_t>* list : {&low_, &high_, &word_}) list->assign(whole, 0);
  for (size_t j = 0; j < columns.size(); ++j) {
    const Threefry4x32::Words words = counter(0, columns[j]);
    low_[j] = words[0];
    high_[j] = words[1];
    word_[j] = static_cast<uint32_t>(columns[j] / 16 % 4);
  }
}

}  // namespace relpos
