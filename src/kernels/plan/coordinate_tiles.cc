#include "kernels/plan/coordinate_tiles.h"

#include <algorithm>

#include "base/parallel.h"

namespace relpos {
namespace {

// Finds the places of kTile keys; false: there are more than kMost.
bool find_places(const int32_t* keys, CoordinateTiles::Places& to) {
  to.count = 0;
  for (int64_t c = 0; c < kTile; ++c) {
    const auto n = std::find(to.at, to.at + to.count, keys[c]) - to.at;
    if (n == CoordinateTiles::Places::kMost) return false;
    if (n == to.count) {
      to.at[to.count] = keys[c];
      to.keys[to.count++] = 0;
    }
    to.keys[n] |= uint64_t{1} << c;
  }
  return true;
}

}  // namespace

CoordinateTiles::CoordinateTiles(const Coordinates& at, int axis, const Problem& p,
                                 Workspace& memory)
    : q_rows_(at.q_rows),
      k_rows_(at.k_rows),
      lengths_(p.queries),
      tiles_(p.tiles()),
      queries_(memory.take<int32_t>(q_rows_ * lengths_)),
      keys_(memory.take<int32_t>(k_rows_ * tiles_ * kTile)),
      kinds_(memory.take<uint8_t>(k_rows_ * tiles_)),
      places_(memory.take<Places>(k_rows_ * tiles_)) {
  CancelTicks tick;
  int64_t q_low = INT64_MAX, q_high = INT64_MIN, k_low = INT64_MAX, k_high = INT64_MIN;
  int32_t* query = queries_.get();
  for (int64_t b = 0; b < q_rows_; ++b) {
    for (int64_t i = 0; i < lengths_; ++i) {
      tick();
      const int64_t value = at.query(axis, b, i);
      *query++ = static_cast<int32_t>(value);
      q_low = std::min(q_low, value);
      q_high = std::max(q_high, value);
    }
  }
  for (int64_t n = 0; n < k_rows_ * tiles_; ++n) {
    const int64_t b = n / tiles_, first = n % tiles_ * kTile;
    const int64_t count = std::min(kTile, p.keys - first);
    int32_t* keys = keys_.get() + n * kTile;
    bool run = true, flat = true;
    for (int64_t c = 0; c < count; ++c) {
      tick();
      const int64_t value = at.key(axis, b, first + c);
      keys[c] = static_cast<int32_t>(value);
      k_low = std::min(k_low, value);
      k_high = std::max(k_high, value);
      run = run && keys[c] == keys[0] + c;
      flat = flat && keys[c] == keys[0];
    }
    for (int64_t c = count; c < kTile; ++c) keys[c] = keys[c - 1] + (run ? 1 : 0);
    kinds_[n] = run ? kRun : flat ? kFlat : find_places(keys, places_[n]) ? kFew : kScattered;
  }
  if (k_low <= k_high) key_range_ = {k_low, k_high};
  if (q_low <= q_high && k_low <= k_high) range_ = {k_low - q_high, k_high - q_low};
}

CoordinateList::CoordinateList(const Problem& p, Workspace& memory) {
  const auto add = [&](const auto& term) {
    if (term.coordinates == nullptr || of(term) != nullptr) return;
    const Coordinates& at = *term.coordinates;
    all_.push_back({&at, term.axis, CoordinateTiles(at, term.axis, p, memory)});
  };
  for (const DistanceBias& term : p.terms.biases) add(term);
  for (const RowTable& term : p.terms.row_tables) add(term);
}

}  // namespace relpos
