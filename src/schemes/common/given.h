// What the terms share whose numbers are inputs of each call: the class map and the coordinates by which
// a table is read.
#pragma once

#include <optional>
#include <string>

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

}  // namespace relpos::common
