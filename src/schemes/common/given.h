// What the terms share whose numbers are inputs of each call: tables, what meets their rows, and the
// class map and the coordinates by which they are read.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "relpos/scheme.h"

namespace relpos::common {

// Rows of a table in an example of a call, and columns of one that has a factor.
inline constexpr int64_t kExampleRows = 8, kExampleRank = 3;

// A table [M, columns], or with by_head [H, M, columns]. `example`: columns in an example.
Source given_table(Builder& b, bool by_head, int64_t columns, int64_t example);

// A table whose rows meet queries or keys, as they are or by a factor: r is D or the factor's.
struct GivenProduct {
  bool by_head = false, factor = false;
  std::optional<double> scale;

  // `met`: what the flag of the factor says.
  void options(OptionList& o, const char* met);
  Source table(Builder& b) const { return given_table(b, by_head, rank(), example_rank()); }
  // [B, heads, tokens, r], where the option asks for it.
  std::optional<Source> given_factor(Builder& b, int64_t heads, int64_t tokens) const;
  int64_t rank() const { return factor ? kAny : kHeadDim; }
  int64_t example_rank() const { return factor ? kExampleRank : kHeadDim; }
};

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
