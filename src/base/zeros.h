// Zeros that a cancelled call does not wait for: fresh memory costs a third of a second for each gigabyte.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/parallel.h"

namespace relpos {

// Makes them `count` numbers, of which the new ones are 0.
inline void add_zeros(std::vector<double>& values, int64_t count) {
  values.reserve(static_cast<size_t>(count));
  in_pieces(count, [&](int64_t, int64_t to) {
    values.resize(std::max(values.size(), static_cast<size_t>(to)), 0.0);
  });
}

inline std::vector<double> zeros(int64_t count) {
  check_cancelled();
  std::vector<double> values;
  add_zeros(values, count);
  return values;
}

template <typename T>
void fill_zeros(T* values, int64_t count) {
  in_pieces(count, [&](int64_t from, int64_t to) { std::fill(values + from, values + to, T{}); });
}

}  // namespace relpos
