// Which tiles blocks of queries see, and the words of those that they see in part (relpos::TileMask).
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "relpos/tensor.h"

namespace relpos {

// A view of a checked mask. Blocks are of its own `rows`, which may differ from those of a driver.
class SeenTiles {
 public:
  // A tile, and the row of its words; kAll: every row of the block sees all its keys.
  struct Entry {
    int64_t tile, at;
  };
  static constexpr int64_t kAll = -1;

  SeenTiles() = default;
  // ranges [B, H, blocks, 2], broadcast; entries [n, 2] and words [m, rows] without gaps.
  SeenTiles(const TensorView& ranges, const TensorView& entries, const TensorView& words)
      : ranges_(ranges),
        entries_(static_cast<const Entry*>(entries.data)),
        words_(static_cast<const uint64_t*>(words.data)),
        rows_(words.shape[1]) {}

  bool given() const noexcept { return rows_ > 0; }
  // Queries of a block, one at least.
  int64_t rows() const noexcept { return rows_; }
  // The tiles that the block of query i sees, in ascending order.
  std::span<const Entry> of(int64_t b, int64_t h, int64_t i) const noexcept {
    const int64_t at = ranges_.offset({b, h, i / rows_, 0});
    const int64_t first = ranges_.load_int(at), end = ranges_.load_int(at + ranges_.strides[3]);
    return {entries_ + first, static_cast<size_t>(end - first)};
  }
  // The words of the rows of a block; null: all ones.
  const uint64_t* words(const Entry& entry) const noexcept {
    return entry.at == kAll ? nullptr : words_ + entry.at * rows_;
  }
  // The first of a block's entries that is of this tile or a later one; null: there is none.
  static const Entry* from(std::span<const Entry> entries, int64_t tile) noexcept {
    const auto found = std::lower_bound(entries.begin(), entries.end(), tile,
                                        [](const Entry& x, int64_t t) { return x.tile < t; });
    return found == entries.end() ? nullptr : &*found;
  }
  // That of this tile; null: nobody of the block sees it.
  static const Entry* find(std::span<const Entry> entries, int64_t tile) noexcept {
    const Entry* found = from(entries, tile);
    return found == nullptr || found->tile != tile ? nullptr : found;
  }
  // The keys of a tile that query i sees.
  uint64_t word(int64_t b, int64_t h, int64_t i, int64_t tile) const noexcept {
    const Entry* found = find(of(b, h, i), tile);
    if (found == nullptr) return 0;
    const uint64_t* all = words(*found);
    return all == nullptr ? ~uint64_t{0} : all[i % rows_];
  }

 private:
  TensorView ranges_;
  const Entry* entries_ = nullptr;
  const uint64_t* words_ = nullptr;
  int64_t rows_ = 0;
};

}  // namespace relpos
