// What a call consists of, in numbers, for code that computes it elsewhere: the kernels of a GPU.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "relpos/attention.h"
#include "relpos/export.h"
#include "relpos/position.h"
#include "relpos/tensor.h"

RELPOS_EXPORT_BEGIN
namespace relpos {

// Numbers of a term: multiplier times a parameter, counted over all parts, of whose axes `chosen` ones went,
// with the entry that stayed, and the rest stand in the order of `axes`, in which -1 is an axis of size 1.
struct LoweredNumbers {
  int64_t parameter = -1;  // -1: not given
  std::vector<int> axes;
  std::vector<std::pair<int, int64_t>> chosen;
  double multiplier = 1.0;
};

// A row table [H, span, D] of the distances first, ...: its `table` are weights [H D, width] or [H, D, width],
// which multiply features [span, width].
struct LoweredProjection {
  int64_t width = 0;  // 0: the table is a parameter
  std::vector<double> features;
};

// A distance bias multiplier * table[h, m(delta)], a sink multiplier * sinks[h] or sinks[b, h, i], a table of
// rows of terms.h, or another term, of which its kind alone is said.
struct LoweredTerm {
  std::string scheme;  // "t5"
  // "distance bias" where the members up to `multiplier` hold, "sink" where the last three of these do; "row
  // table" where classes and the members from `table` on do, "vector added to the query" where `table` does;
  // else what the term is.
  std::string kind;
  // m(delta) is classes[n] for starts[n - 1] <= delta < starts[n]; -1: nothing is added.
  std::vector<int64_t> starts, classes;
  // The table [H, M]: this parameter, counted over all parts, with its axes in the order of `axes`.
  int64_t parameter = 0;
  std::vector<int> axes;
  double multiplier = 1.0;
  LoweredNumbers table, factor, added;  // as RowTable of terms.h has them
  double scale = 1.0;                   // of the products, resolved
  LoweredProjection projection;
};

struct LoweredCall {
  double scale = 1.0;       // of the scores
  bool consecutive = true;  // tokens stand at consecutive positions, from the call's offsets on
  std::vector<LoweredTerm> terms;
};

// Throws Error where attention() would, as far as shapes, dtypes and plain options tell. Elements are read
// of integers alone, which may be zeros in place of those that say positions.
LoweredCall lower(const TensorView& query, const TensorView& key, const TensorView& value,
                  const Position& position, const Options& options);

}  // namespace relpos
RELPOS_EXPORT_END
