// Windows of tokens, row by row: where they stand, and the offsets between them.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "relpos/scheme.h"

namespace relpos::common {

// Token t stands at y (2 width - 1) + x: then the distance of two tokens says both of their offsets.
struct Window {
  int64_t height = 1, width = 1;

  // Of an option: one side, or [height, width]. Throws Error naming the scheme.
  Window(const Builder& b, const char* option, const std::vector<double>& sides) {
    constexpr double kMost = 1 << 20;
    const bool whole = std::all_of(sides.begin(), sides.end(), [](double side) {
      return side >= 1 && side <= kMost && side == std::floor(side);
    });
    b.require(whole && (sides.size() == 1 || sides.size() == 2), option,
              ": expected one or two whole numbers of 1 to 2^20");
    height = static_cast<int64_t>(sides.front());
    width = static_cast<int64_t>(sides.back());
  }

  int64_t stride() const { return 2 * width - 1; }
  int64_t farthest() const { return (height - 1) * stride() + width - 1; }
  // Rows of a table of all offsets, the key's one window right of and below the query's first.
  ClassMap map() const {
    return ClassMap::zero_outside(-farthest(), farthest(), /*reversed=*/true);
  }
  int64_t operator()(int64_t token) const {
    const int64_t y = token >= 0 ? token / width : -((width - 1 - token) / width);
    return y * stride() + (token - y * width);
  }
};

}  // namespace relpos::common
