#include "binding/coordinates.h"

#include <algorithm>
#include <limits>

#include "base/parallel.h"

namespace relpos {
namespace {

// [B, axes, L] of one axis without that axis.
TensorView with_axis(const TensorView& view) {
  if (view.rank != 2) return view;
  TensorView whole = view;
  whole.rank = 3;
  whole.shape = {view.shape[0], 1, view.shape[1]};
  whole.strides = {view.strides[0], 0, view.strides[1]};
  return whole;
}

// [axes, B, L] of [B, axes, L]. Views without memory, of which only sizes matter, give zeros.
std::vector<int64_t> by_axis(const TensorView& view) {
  std::vector<int64_t> values;
  values.reserve(static_cast<size_t>(view.numel()));
  CancelTicks tick;
  for (int64_t axis = 0; axis < view.shape[1]; ++axis) {
    for (int64_t b = 0; b < view.shape[0]; ++b) {
      for (int64_t i = 0; i < view.shape[2]; ++i) {
        tick();
        const bool integers = view.dtype == DType::kInt64 && view.data != nullptr;
        values.push_back(integers ? view.load_int(view.offset({b, axis, i})) : 0);
      }
    }
  }
  return values;
}

// The largest of positions, or of runs of `length` from each; the lowest number where there is none.
int64_t last_of(const std::vector<int64_t>& at, int64_t length, bool consecutive) {
  if (length == 0 || at.empty()) return std::numeric_limits<int64_t>::min();
  const int64_t last = *std::max_element(at.begin(), at.end());
  return consecutive ? last + length - 1 : last;
}

}  // namespace

Coordinates coordinates_at(const TokenPositions* positions, int64_t axes,
                           const TurnBy::CoordinateOf& coordinate) {
  Coordinates found;
  found.axes = axes;
  if (positions == nullptr) return found;
  found.queries = positions->queries;
  found.keys = positions->keys;
  found.q_rows = positions->q_rows;
  found.k_rows = positions->k_rows;
  found.q.reserve(static_cast<size_t>(axes * found.q_rows * found.queries));
  found.k.reserve(static_cast<size_t>(axes * found.k_rows * found.keys));
  CancelTicks tick;
  for (int64_t axis = 0; axis < axes; ++axis) {
    for (int64_t b = 0; b < found.q_rows; ++b) {
      for (int64_t i = 0; i < found.queries; ++i) {
        tick();
        found.q.push_back(coordinate(static_cast<int>(axis), positions->query(b, i)));
      }
    }
    for (int64_t b = 0; b < found.k_rows; ++b) {
      for (int64_t j = 0; j < found.keys; ++j) {
        tick();
        found.k.push_back(coordinate(static_cast<int>(axis), positions->key(b, j)));
      }
    }
  }
  return found;
}

Coordinates coordinates_at(const TokenPositions* positions, const Along::Coordinate& query,
                           const Along::Coordinate& key) {
  const auto of_query = [&](int, int64_t position) { return query(position); };
  const auto of_key = [&](int, int64_t position) { return key(position); };
  Coordinates found = coordinates_at(positions, 1, of_query);
  found.k = coordinates_at(positions, 1, of_key).k;
  return found;
}

Coordinates coordinates_given(const TensorView& of_queries, const TensorView& of_keys) {
  const TensorView queries = with_axis(of_queries), keys = with_axis(of_keys);
  Coordinates found;
  found.axes = queries.shape[1];
  found.q_rows = queries.shape[0];
  found.k_rows = keys.shape[0];
  found.queries = queries.shape[2];
  found.keys = keys.shape[2];
  found.q = by_axis(queries);
  found.k = by_axis(keys);
  return found;
}

Coordinates coordinates_read(const Coordinates& given, const TokenPositions* positions,
                             const Along& along) {
  if (positions == nullptr) return given;
  Coordinates found;
  found.axes = 1;
  found.queries = given.queries;
  found.keys = given.keys;
  found.q_rows = std::max(given.q_rows, positions->q_rows);
  found.k_rows = std::max(given.k_rows, positions->k_rows);
  CancelTicks tick;
  for (int64_t b = 0; b < found.q_rows; ++b) {
    for (int64_t i = 0; i < found.queries; ++i) {
      tick();
      found.q.push_back(along.of_query(given.query(0, b, i), positions->query(b, i)));
    }
  }
  for (int64_t b = 0; b < found.k_rows; ++b) {
    for (int64_t j = 0; j < found.keys; ++j) {
      tick();
      found.k.push_back(along.of_key(given.key(0, b, j), positions->key(b, j)));
    }
  }
  return found;
}

int64_t length_of(const TokenPositions& positions) {
  const bool consecutive = positions.consecutive;
  return std::max({last_of(positions.q, positions.queries, consecutive),
                   last_of(positions.k, positions.keys, consecutive), int64_t{-1}}) +
         1;
}

int64_t last_query_of(const TokenPositions& positions) {
  if (positions.queries == 0 || positions.q.empty()) return 0;
  return last_of(positions.q, positions.queries, positions.consecutive);
}

}  // namespace relpos
