// One checked attention call as the kernels see it: sizes, views, positions, visibility, terms.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/angles.h"
#include "kernels/dropout.h"
#include "relpos/cancel.h"
#include "relpos/tensor.h"
#include "relpos/terms.h"

namespace relpos {

// The larger of two numbers; NaN where one of them is.
inline double larger_or_nan(double a, double b) noexcept { return a >= b || std::isnan(a) ? a : b; }

inline constexpr int64_t kTile = 64;  // keys of one tile, and of one word of visibility bits

// Positions of queries and keys. Consecutive ones are a start for each batch row; explicit ones are
// arrays. Either may be shared by the batch (one row).
struct Positions {
  bool consecutive = true;
  int64_t q_rows = 1, k_rows = 1;  // 1 or B
  std::vector<int64_t> q, k;       // starts [rows], or positions [rows, L]
  int64_t queries = 0, keys = 0;

  int64_t query(int64_t b, int64_t i) const noexcept {
    const int64_t row = q_rows == 1 ? 0 : b;
    return consecutive ? q[row] + i : q[row * queries + i];
  }
  int64_t key(int64_t b, int64_t j) const noexcept {
    const int64_t row = k_rows == 1 ? 0 : b;
    return consecutive ? k[row] + j : k[row * keys + j];
  }
  // True where no two batch rows differ.
  bool shared() const noexcept { return q_rows == 1 && k_rows == 1; }
};

// Ones at [from, to) of a tile's keys, cut to the tile.
inline uint64_t interval_bits(int64_t from, int64_t to) noexcept {
  from = std::max<int64_t>(from, 0);
  to = std::min(to, kTile);
  return to <= from ? 0 : (~uint64_t{0} >> (kTile - (to - from))) << from;
}

// Which pairs attend: an interval of keys for each query, AND padding bits, AND a dense mask.
struct Visibility {
  int64_t rows = 1;                               // 1 or B
  std::vector<std::pair<int64_t, int64_t>> span;  // [rows, Lq]; empty: all keys of every query
  std::vector<uint64_t> key_bits;                 // [B, ceil(Lk / 64)], 1 = visible; empty: all
  TensorView mask;                                // bool or floating, broadcast to [B, H, Lq, Lk]
  int64_t queries = 0, keys = 0;

  // Every query sees every key.
  bool everything() const noexcept { return span.empty() && key_bits.empty() && !mask.given(); }
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
    const int64_t first = tile * kTile;
    const auto [lo, hi] = interval(b, i);
    uint64_t word = interval_bits(lo - first, std::min(hi, keys) - first);
    if (!key_bits.empty()) word &= key_bits[b * ((keys + kTile - 1) / kTile) + tile];
    if (word == 0 || !mask.given()) return word;
    return word & mask_bits(mask, mask_offset(b, h, i, first), std::min(kTile, keys - first));
  }
  bool boolean_mask() const noexcept { return mask.given() && mask.dtype == DType::kBool; }
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

struct Problem {
  int64_t batch = 0, heads = 0, kv_heads = 0, queries = 0, keys = 0, head_dim = 0, value_dim = 0;
  TensorView query, key, value;  // value is not given for scores and weights
  double scale = 1.0;
  double softcap = 0.0;  // c of c tanh(score / c), before a floating mask; 0: none
  Terms terms;
  Positions positions;
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
  int64_t group() const noexcept { return kv_heads == 0 ? 0 : heads / kv_heads; }
  int64_t tiles() const noexcept { return (keys + kTile - 1) / kTile; }
  // Smallest and largest distance among pairs inside the intervals; {0, -1} when there is none.
  std::pair<int64_t, int64_t> distance_range() const;
};

// The dims of a head that pair n of a rotation is.
inline std::pair<int64_t, int64_t> dims_of_pair(const Rotation& rotation, int64_t n) noexcept {
  if (rotation.layout == PairLayout::kInterleaved) {
    return {rotation.start + 2 * n, rotation.start + 2 * n + 1};
  }
  return {rotation.start + n, rotation.start + n + rotation.dims / 2};
}

// What pair n of a rotation turns by: the position of query or key i, or a coordinate of it.
inline int64_t turns_by(const Positions& at, const Rotation& rotation, int64_t n, bool query,
                        int64_t b, int64_t i) noexcept {
  if (rotation.axis.empty()) return query ? at.query(b, i) : at.key(b, i);
  return rotation.coordinates->of(query, rotation.axis[n], b, i);
}

// head_frequency[axis, h, n] of a rotation, multiplied.
inline double frequency_of(const TermData& head_frequency, int64_t axis, int64_t h, int64_t n) {
  const TensorView& view = head_frequency.view;
  return head_frequency.multiplier * view.at({axis, view.shape[1] == 1 ? 0 : h, n});
}

// The angle by which pair n of key head h turns query or key i, and the queries of its group.
inline double angle_of(const Positions& at, const Rotation& rotation, int64_t n, bool query,
                       int64_t b, int64_t h, int64_t i) noexcept {
  const TermData& own = rotation.head_frequency;
  if (!own.view.given()) {
    return rotation_angle(rotation, turns_by(at, rotation, n, query, b, i), n);
  }
  double angle = 0.0;
  for (int64_t axis = 0; axis < own.view.shape[0]; ++axis) {
    angle += static_cast<double>(rotation.coordinates->of(query, axis, b, i)) *
             frequency_of(own, axis, h, n);
  }
  return angle;
}

// Cosine and sine, times the magnitude, by which pair n of key head h turns query or key i.
inline std::pair<double, double> turn_of(const Positions& at, const Rotation& rotation, int64_t n,
                                         bool query, int64_t b, int64_t h, int64_t i) noexcept {
  double c = 0.0, s = 0.0;
  if (rotation.tables.q_cos.view.given()) {
    const TermData& cosines = query ? rotation.tables.q_cos : rotation.tables.k_cos;
    const TermData& sines = query ? rotation.tables.q_sin : rotation.tables.k_sin;
    c = cosines.multiplier * cosines.view.at({b, h, i, n});
    s = sines.multiplier * sines.view.at({b, h, i, n});
  } else {
    const double angle = angle_of(at, rotation, n, query, b, h, i);
    c = std::cos(angle);
    s = std::sin(angle);
  }
  return {rotation.magnitude * c, rotation.magnitude * s};
}

// Calls f(name, data, gradient) for every gradient of terms, wanted or not.
template <typename Gradients, typename F>
void for_each_gradient(const Terms& terms, Gradients& of, F&& f) {
  for (size_t n = 0; n < terms.rotations.size(); ++n) {
    const Rotation::Tables& tables = terms.rotations[n].tables;
    f("head frequency", terms.rotations[n].head_frequency, of.rotations[n].head_frequency);
    f("query cosines", tables.q_cos, of.rotations[n].q_cos);
    f("query sines", tables.q_sin, of.rotations[n].q_sin);
    f("key cosines", tables.k_cos, of.rotations[n].k_cos);
    f("key sines", tables.k_sin, of.rotations[n].k_sin);
  }
  for (size_t n = 0; n < terms.biases.size(); ++n) {
    f("bias table", terms.biases[n].table, of.biases[n].table);
    f("slopes", terms.biases[n].slopes, of.biases[n].slopes);
  }
  for (size_t n = 0; n < terms.row_tables.size(); ++n) {
    f("row table", terms.row_tables[n].table, of.row_tables[n].table);
    f("row factor", terms.row_tables[n].factor, of.row_tables[n].factor);
    f("row added", terms.row_tables[n].added, of.row_tables[n].added);
  }
  for (size_t n = 0; n < terms.column_tables.size(); ++n) {
    f("column table", terms.column_tables[n].table, of.column_tables[n].table);
    f("column factor", terms.column_tables[n].factor, of.column_tables[n].factor);
  }
  for (size_t n = 0; n < terms.key_biases.size(); ++n) {
    f("key bias", terms.key_biases[n].values, of.key_biases[n].table);
  }
  for (size_t n = 0; n < terms.value_tables.size(); ++n) {
    f("value table", terms.value_tables[n].table, of.value_tables[n].table);
  }
  for (size_t n = 0; n < terms.query_added.size(); ++n) {
    f("query added", terms.query_added[n], of.query_added[n]);
  }
  for (size_t n = 0; n < terms.sinks.size(); ++n) {
    f("sink", terms.sinks[n], of.sinks[n]);
  }
}

// Where the forward pass puts its results. lse and softmax (softmax_state.h) may be not given.
struct ForwardResults {
  TensorView out, lse, softmax;
};

// Where the kernels put gradients. Views may be not given; term gradients come from zeros(terms).
// Whether elements of a mask, broadcast to [B, H, Lq, Lk], are read by more than one pair.
inline bool shares_elements(const TensorView& mask) noexcept {
  for (size_t axis = 0; axis < 4; ++axis) {
    if (mask.shape[axis] > 1 && mask.strides[axis] == 0) return true;
  }
  return false;
}

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
