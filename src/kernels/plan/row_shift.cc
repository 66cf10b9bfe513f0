#include "kernels/plan/row_shift.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/parallel.h"
#include "kernels/block/kernels.h"

namespace relpos {
namespace {

// A row that sees keys on both sides of its query keeps its distances where the nearest key's linear
// biases are this small, and so is their rounding: one table holds them all.
constexpr double kSmallShift = 16.0;
// Rows at so many positions, one after another, share the shift of their key biases.
constexpr int64_t kSharing = 6;
// Biases that stand for a mask are no shift.
constexpr double kLargestShift = 1e30;

}  // namespace

Shifts::Shifts(const Problem& problem) : p_(problem) {
  for (const DistanceBias& term : p_.terms.biases) sloped_ |= term.slopes.view.given();
  if (!active() || p_.positions.consecutive) return;
  for (int64_t b = 0; b < p_.positions.k_rows; ++b) {
    check_cancelled();
    const int64_t* first = p_.positions.k.data() + b * p_.keys;
    ascending_.push_back(std::is_sorted(first, first + p_.keys) ? 1 : 0);
    const auto [low, high] = std::minmax_element(first, first + p_.keys);
    reach_.emplace_back(*low, *high);
  }
}

bool Shifts::ascending(int64_t b) const noexcept {
  if (p_.positions.consecutive) return true;
  return ascending_[p_.positions.k_rows == 1 ? 0 : b] != 0;
}

std::pair<int64_t, int64_t> Shifts::reach(int64_t b, int64_t lo, int64_t hi) const {
  if (p_.positions.consecutive) return {p_.positions.key(b, lo), p_.positions.key(b, hi - 1)};
  return reach_[p_.positions.k_rows == 1 ? 0 : b];
}

int64_t Shifts::seen(int64_t b, int64_t h, int64_t i, int64_t from, int64_t to, bool last) const {
  if (from >= to) return -1;
  if (p_.visible.key_bits.empty() && !p_.visible.masked()) return last ? to - 1 : from;
  const int64_t low = from / kTile, high = (to - 1) / kTile;
  CancelTicks tick;
  for (int64_t n = 0; n <= high - low; ++n) {
    tick();
    const int64_t t = last ? high - n : low + n, first = t * kTile;
    const uint64_t bits = p_.visible.bits(b, h, i, t, tile_kernels().mask_bits) &
                          interval_bits(from - first, to - first);
    if (bits == 0) continue;
    return first + (last ? kTile - 1 - std::countl_zero(bits) : std::countr_zero(bits));
  }
  return -1;
}

Shifts::Neighbours Shifts::neighbours(int64_t b, int64_t h, int64_t i) const {
  const auto [from, to] = p_.visible.interval(b, i);
  const int64_t lo = std::max<int64_t>(from, 0), hi = std::min(to, p_.keys);
  if (lo >= hi) return {};
  const int64_t at = p_.positions.query(b, i);
  int64_t split = lo;  // the first key of the interval at the query's position or after it
  if (p_.positions.consecutive) {
    split = std::clamp(at - p_.positions.key(b, 0), lo, hi);
  } else {
    const int64_t* keys = p_.positions.k.data() + (p_.positions.k_rows == 1 ? 0 : b) * p_.keys;
    split = std::lower_bound(keys + lo, keys + hi, at) - keys;
  }
  Neighbours near;
  near.after = seen(b, h, i, split, hi, false);
  if (near.after >= 0 && p_.positions.key(b, near.after) == at) return near;
  near.before = seen(b, h, i, lo, split, true);
  return near;
}

double Shifts::key_bias(int64_t b, int64_t h, int64_t j) const {
  double sum = 0.0;
  for (const KeyBias& term : p_.terms.key_biases) {
    const TensorView& view = term.values.view;
    const int64_t at = view.rank == 3 ? view.offset({b, h, j}) : view.offset({h, j});
    sum += view.load(at) * term.values.multiplier;
  }
  return sum;
}

RowShift Shifts::of(int64_t b, int64_t h, int64_t i) const {
  RowShift shift;
  if (!active() || p_.softcap != 0.0) return shift;  // a softcap sees the scores themselves
  if (sloped_ && !ascending(b)) {
    const auto [lo, hi] = p_.visible.interval(b, i);
    if (lo < hi) {
      const auto [low, high] = reach(b, lo, hi);
      const int64_t at = p_.positions.query(b, i);
      shift.distance = std::clamp<int64_t>(0, low - at, high - at);
    }
  } else if (sloped_) {
    const Neighbours seen = neighbours(b, h, i);
    const int64_t at = p_.positions.query(b, i);
    const int64_t before = seen.before < 0 ? 0 : p_.positions.key(b, seen.before) - at;
    const int64_t after = seen.after < 0 ? 0 : p_.positions.key(b, seen.after) - at;
    shift.both_sides = seen.before >= 0 && seen.after >= 0;
    shift.distance = shift.both_sides ? (-before < after ? before : after) : before + after;
  }
  double size = 0.0;
  for (const DistanceBias& term : p_.terms.biases) {
    if (!term.slopes.view.given() || shift.distance == 0) continue;
    const double bias = term.slopes.view.at({shift.distance < 0 ? 0 : 1, h}) *
                        term.slopes.multiplier * static_cast<double>(shift.distance);
    shift.slopes += bias;
    size += std::fabs(bias);
  }
  if (shift.both_sides && size < kSmallShift) shift = {};
  if (p_.terms.key_biases.empty() || !ascending(b)) return shift;
  const int64_t group = i / kSharing * kSharing;
  const int64_t last = std::min(group + kSharing, p_.queries) - 1;
  const int64_t span = p_.positions.query(b, last) - p_.positions.query(b, group);
  const bool shares = span >= 0 && span < kSharing;
  for (int64_t row = shares ? group : i; row <= (shares ? last : i); ++row) {
    const Neighbours near = neighbours(b, h, row);
    if (near.before < 0 && near.after < 0) continue;
    const double bias = key_bias(b, h, std::max(near.before, near.after));
    if (std::fabs(bias) < kLargestShift) shift.keys = bias;
    break;
  }
  return shift;
}

std::pair<int64_t, int64_t> Shifts::range() const {
  if (p_.softcap != 0.0) return p_.distance_range();
  int64_t low = INT64_MAX, high = INT64_MIN;
  CancelTicks tick;
  const int64_t rows = std::max({p_.visible.rows, p_.positions.q_rows, p_.positions.k_rows});
  for (int64_t b = 0; b < rows; ++b) {
    for (int64_t i = 0; i < p_.queries; ++i) {
      tick();
      const auto [lo, hi] = p_.visible.interval(b, i);
      if (lo >= hi) continue;
      const auto [first, last] = reach(b, lo, hi);
      const int64_t at = p_.positions.query(b, i);
      const int64_t nearest = std::clamp<int64_t>(0, first - at, last - at);
      low = std::min(low, first - at - nearest);
      high = std::max(high, last - at - nearest);
    }
  }
  if (low > high) return {0, -1};
  return {low, high};
}

}  // namespace relpos
