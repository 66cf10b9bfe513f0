// One checked attention call as the kernels see it: sizes, views, positions, visibility, terms.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/dropout.h"
#include "kernels/seen_tiles.h"
#include "relpos/cancel.h"
#include "relpos/tensor.h"
#include "relpos/terms.h"
#include "values/call_shape.h"
#include "values/token_positions.h"

namespace relpos {

// The larger of two numbers; NaN where one of them is.
inline double larger_or_nan(double a, double b) noexcept { return a >= b || std::isnan(a) ? a : b; }

inline constexpr int64_t kTile = 64;  // keys of one tile, and of one word of visibility bits

// Ones at [from, to) of a tile's keys, cut to the tile.
inline uint64_t interval_bits(int64_t from, int64_t to) noexcept {
  from = std::max<int64_t>(from, 0);
  to = std::min(to, kTile);
  return to <= from ? 0 : (~uint64_t{0} >> (kTile - (to - from))) << from;
}

// Which pairs attend: an interval of keys for each query, AND padding bits, AND a mask by tiles, AND a
// dense mask, AND classes of pairs.
struct Visibility {
  int64_t rows = 1;                               // 1 or B
  std::vector<std::pair<int64_t, int64_t>> span;  // [rows, Lq]; empty: all keys of every query
  std::vector<uint64_t> key_bits;                 // [B, ceil(Lk / 64)], 1 = visible; empty: all
  SeenTiles tiles;
  TensorView mask;                   // bool or floating, broadcast to [B, H, Lq, Lk]
  std::vector<PairClasses> classes;  // of each, pairs of its hidden class are not seen
  int64_t queries = 0, keys = 0;

  // Every query sees every key.
  bool everything() const noexcept { return span.empty() && key_bits.empty() && !masked(); }
  // A mask, dense or by tiles, or classes may hide any pair of the intervals.
  bool masked() const noexcept { return tiles.given() || mask.given() || !classes.empty(); }
  std::pair<int64_t, int64_t> interval(int64_t b, int64_t i) const noexcept {
    if (span.empty()) return {0, keys};
    return span[(rows == 1 ? 0 : b) * queries + i];
  }
  // Bit c is set where key 64 * tile + c is visible to query i. A floating mask hides a pair by -inf, so
  // that nothing of a hidden key, NaN included, is read.
  uint64_t bits(int64_t b, int64_t h, int64_t i, int64_t tile) const noexcept;
  // The same, where mask_bits(mask, at, count) has the bits of `count` keys from element `at` on.
  template <typename MaskBits>
  uint64_t bits(int64_t b, int64_t h, int64_t i, int64_t tile, const MaskBits& mask_bits) const {
    const uint64_t of_tiles = tiles.given() ? tiles.word(b, h, i, tile) : ~uint64_t{0};
    return of_tiles & bits_but_of_tiles(b, h, i, tile, mask_bits);
  }
  // The same without the mask by tiles.
  template <typename MaskBits>
  uint64_t bits_but_of_tiles(int64_t b, int64_t h, int64_t i, int64_t tile,
                             const MaskBits& mask_bits) const {
    const int64_t first = tile * kTile;
    const auto [lo, hi] = interval(b, i);
    uint64_t word = interval_bits(lo - first, std::min(hi, keys) - first);
    if (!key_bits.empty()) word &= key_bits[b * ((keys + kTile - 1) / kTile) + tile];
    const int64_t count = std::min(kTile, keys - first);
    if (word != 0 && mask.given()) word &= mask_bits(mask, mask_offset(b, h, i, first), count);
    for (size_t n = 0; n < classes.size() && word != 0; ++n) {
      const PairClasses& own = classes[n];
      for (int64_t c = 0; c < count; ++c) {
        word &= ~(uint64_t{own.of(b, i, first + c) == own.hidden} << c);
      }
    }
    return word;
  }
  bool floating_mask() const noexcept { return mask.given() && mask.dtype != DType::kBool; }
  int64_t mask_offset(int64_t b, int64_t h, int64_t i, int64_t j) const noexcept {
    return mask.offset({b, h, i, j});
  }
  // Where the row that query i reads starts.
  const std::byte* mask_row(int64_t b, int64_t h, int64_t i) const noexcept {
    return static_cast<const std::byte*>(mask.data) +
           mask_offset(b, h, i, 0) * item_size(mask.dtype);
  }
};

struct Kernels;

struct Problem : CallShape {
  TensorView query, key, value;  // value is not given for scores and weights
  double scale = 1.0;
  double softcap = 0.0;  // c of c tanh(score / c), before a floating mask; 0: none
  Terms terms;
  TokenPositions positions;
  Visibility visible;
  Dropout dropout;
  CancelToken* cancel = nullptr;
  int threads = 1;
  const Kernels* kernels = nullptr;  // null: those of the target in use
  bool adds_sinks = true;            // false: they join the softmax of another piece of the call
  bool skip_tiles = true;  // false: read tiles whose weights all underflow too; no bit differs

  // Calls f(n, score) for the sinks that join the softmax of row (b, h, i).
  template <typename F>
  void for_each_sink(int64_t b, int64_t h, int64_t i, F&& f) const {
    for (size_t n = 0; n < terms.sinks.size() && adds_sinks; ++n) {
      const TensorView& view = terms.sinks[n].view;
      f(n, terms.sinks[n].multiplier * (view.rank == 3 ? view.at({b, h, i}) : view.at({h})));
    }
  }
  int64_t tiles() const noexcept { return (keys + kTile - 1) / kTile; }
  // Smallest and largest distance among pairs inside the intervals; {0, -1} when there is none.
  std::pair<int64_t, int64_t> distance_range() const;
};

// Kernels of the target in use (simd/targets.h): for all but the tiles of a call, and for those.
const Kernels& tile_kernels();
const Kernels& tile_kernels(const Problem& problem);

// Where the forward pass puts its results. lse and softmax (softmax_state.h) may be not given.
struct ForwardResults {
  TensorView out, lse, softmax;
};

// Whether elements of a mask, broadcast to [B, H, Lq, Lk], are read by more than one pair.
inline bool shares_elements(const TensorView& mask) noexcept {
  for (size_t axis = 0; axis < 4; ++axis) {
    if (mask.shape[axis] > 1 && mask.strides[axis] == 0) return true;
  }
  return false;
}

// Where the kernels put gradients. Views may be not given; term gradients come from zeros(terms).
struct ProblemGradients {
  TensorView query, key, value;
  // Of the floating mask. Where several pairs share an element, sums, indexed through mask_index, which
  // has no data and contiguous strides, broadcast to [B, H, Lq, Lk]. Else, if given, `mask_rows`
  // [B, H, Lq, Lk], zeros before the pass, gets the rows as they come.
  std::vector<double>* mask = nullptr;
  TensorView mask_index, mask_rows;
  TermGradients* terms = nullptr;
};

}  // namespace relpos
