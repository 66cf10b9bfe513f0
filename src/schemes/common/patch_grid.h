// Grids of tokens, row by row: where they stand, and the offsets between them.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "relpos/scheme.h"
#include "schemes/common/maps.h"

namespace relpos::common {

// Rounded down.
inline int64_t quotient(int64_t number, int64_t by) {
  return number >= 0 ? number / by : -((by - 1 - number) / by);
}

// Token t stands at y (2 width - 1) + x: then the distance of two tokens says both of their offsets.
// The first `prefix` tokens stand before the window's, at positions below 0; where there are none,
// positions below 0 are rows above it.
struct PatchGrid {
  int64_t height = 1, width = 1, prefix = 0;

  // Of an option: one side, or [height, width]. Throws Error naming the scheme.
  PatchGrid(const Builder& b, const char* option, const std::vector<double>& sides,
            int64_t before = 0)
      : prefix(before) {
    constexpr double kMost = 1 << 20;
    const bool whole = std::all_of(sides.begin(), sides.end(), [](double side) {
      return side >= 1 && side <= kMost && side == std::floor(side);
    });
    b.require(whole && (sides.size() == 1 || sides.size() == 2), option,
              ": expected one or two whole numbers of 1 to 2^20");
    height = static_cast<int64_t>(sides.front());
    width = static_cast<int64_t>(sides.back());
  }

  // Throws Error unless all offsets have a place in memory.
  void require_memory(const Builder& b, const char* option) const {
    b.require(farthest() < kMostRuns, option, ": expected a window with fewer than ", kMostRuns,
              " offsets to the right and below, got ", farthest());
  }

  int64_t stride() const { return 2 * width - 1; }
  int64_t farthest() const { return (height - 1) * stride() + width - 1; }
  // Rows of a table of all offsets, the key's one window right of and below the query's first.
  ClassMap map() const {
    return ClassMap::zero_outside(-farthest(), farthest(), /*reversed=*/true);
  }
  int64_t operator()(int64_t token) const {
    const int64_t patch = token - prefix, y = quotient(patch, width);
    return y * stride() + (patch - y * width);
  }
  bool in_prefix(int64_t position) const { return prefix > 0 && position < 0; }
  int64_t row(int64_t position) const { return quotient(position, stride()); }
  int64_t column(int64_t position) const { return position - row(position) * stride(); }
  // (y, x) of a distance between two tokens.
  std::pair<int64_t, int64_t> offset(int64_t distance) const {
    const int64_t y = quotient(distance + width - 1, stride());
    return {y, distance - y * stride()};
  }
};

}  // namespace relpos::common
