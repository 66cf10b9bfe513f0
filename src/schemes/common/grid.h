// Patches of an image after some other tokens: where they stand, and their rows and columns.
#pragma once

#include "schemes/common/window.h"

namespace relpos::common {

// A window whose tokens follow `prefix` others. Those stand before the first row, at positions below
// 0; where there are none, positions below 0 are rows above the image.
struct Grid : Window {
  int64_t prefix;

  Grid(const Builder& b, const char* option, const std::vector<double>& sides, int64_t before)
      : Window(b, option, sides), prefix(before) {}

  int64_t operator()(int64_t token) const { return Window::operator()(token - prefix); }
  bool before(int64_t position) const { return prefix > 0 && position < 0; }
};

}  // namespace relpos::common
