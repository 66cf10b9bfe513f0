// What the terms share whose numbers are inputs of each call: the class map and the coordinates by which
// a table is read.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "relpos/scheme.h"

namespace relpos::common {

// The rows of a table for distances: their number is that of the table, never an option, so that one
// text serves every length.
struct GivenRows {
  std::string map = "clamp";
  bool reversed = false, along = false;

  void options(OptionList& o);
  void along_option(OptionList& o);
  GivenMap given(Builder& b) const;
  std::optional<Along> coordinates(Builder& b) const;
};

// Where a token of a grid stands, such that the distance of two says their offset on every axis: each
// axis but the first has 2 side - 1 places.
std::function<int64_t(int64_t token)> grid_place(const Builder& b, const std::vector<double>& grid);

}  // namespace relpos::common
