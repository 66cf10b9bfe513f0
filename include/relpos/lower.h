// What a call consists of, in numbers, for code that computes it elsewhere: the kernels of a GPU.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
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

// m(delta) is classes[n] for starts[n - 1] <= delta < starts[n]; -1: nothing is added.
struct LoweredMap {
  std::vector<int64_t> starts, classes;
};

// Where tokens stand in place of their positions: on axis `axis` of two inputs [B, axes, L], or [B, L] of
// one axis; or, without inputs, at q [1 or B, Lq] and k [1 or B, Lk].
struct LoweredCoordinates {
  LoweredNumbers of_queries, of_keys;
  int axis = 0;
  std::vector<int64_t> q, k;
};

// The class of each pair, in its place: of the parameter [Lq, Lk] or [B, Lq, Lk]; pairs of class `hidden` are
// not seen, -1: there is none.
struct LoweredClasses {
  int64_t parameter = -1;
  int hidden = -1;
};

// What the distance of a pair is: that of positions, of coordinates, or its class.
using LoweredDistance = std::variant<std::monostate, LoweredCoordinates, LoweredClasses>;

// table[h, m(delta)] of [H, M], or [1, M] for all heads.
struct LoweredBias {
  LoweredMap map;
  LoweredNumbers table;
  LoweredDistance delta;
};

// The same of a table [heads, M], heads H or 1, that computed_tables() computes from the parameters
// [first, last), those of its part.
struct LoweredComputedTable {
  LoweredMap map;
  int64_t heads = 0, first = 0, last = 0;
};

// past[h] min(delta, 0) + future[h] max(delta, 0), of [H] each.
struct LoweredSlopes {
  LoweredNumbers past, future;
};

// [H, Lk] or [B, H, Lk]; cumulative: their sums along the last axis.
struct LoweredKeyBias {
  LoweredNumbers values;
  bool cumulative = false;
};

// A table of rows of terms.h, with what meets it.
struct LoweredRows {
  LoweredMap map;
  LoweredNumbers table, factor, added;
  double scale = 1.0;     // of the products, resolved
  LoweredDistance delta;  // of rows that meet keys or join values that of positions
  // Above 0: the table is [H, span, D] of the distances first, ..., and `table` the weights [H D, width] or
  // [H, D, width], which multiply features [span, width].
  int64_t width = 0;
  std::vector<double> features;
};

// A rotation of the dimensions [start, start + dims) of queries and keys (terms.h). Pair p of a token of key
// head h turns by the sum over the axes of coordinate[axis] * frequency[axis, h, p].
struct LoweredTurn {
  int64_t start = 0, dims = 0;
  bool interleaved = false;  // pairs (2p, 2p + 1), else (p, p + dims / 2)
  double magnitude = 1.0;
  bool float32_angles = false;
  int64_t axes = 0;               // 0: cosines and sines are given
  std::vector<double> frequency;  // [axes, dims / 2]: of all heads; empty: of `numbers`
  // "position": the coordinate is the position; "inputs": those of queries [B, axes, Lq] and of keys are
  // `numbers`; "coordinates": they are below, and `numbers` the frequencies [axes, Hk or 1, dims / 2], if
  // these are trained; "tables": `numbers` are cosines and sines of queries, then of keys, [B, L, dims / 2]
  // or [B, Hk or 1, L, dims / 2].
  std::string by;
  std::vector<LoweredNumbers> numbers;
  std::vector<int64_t> q, k;  // [axes, 1 or B, Lq], [axes, 1 or B, Lk]
};

struct LoweredTerm {
  std::string scheme;  // "t5"
  std::string kind;    // in words: "distance bias", "row table"
  // Numbers alone: a sink [H] or [B, H, Lq], or a vector [H, D] added to the query. Of the kinds that are not
  // said to kernels: nothing.
  std::variant<std::monostate, LoweredNumbers, LoweredBias, LoweredComputedTable, LoweredSlopes,
               LoweredKeyBias, LoweredRows, LoweredTurn>
      what;
};

struct LoweredCall {
  double scale = 1.0;       // of the scores
  bool consecutive = true;  // tokens stand at consecutive positions, from the call's offsets on
  // What is said of the terms holds at the positions, and for the inputs of integers, that were read alone.
  bool reads_positions = false, reads_inputs = false;
  std::vector<LoweredTerm> terms;
};

// Throws Error where attention() would, as far as shapes, dtypes and plain options tell. Elements are read
// of integers alone, which may be zeros in place of those that say positions or coordinates.
LoweredCall lower(const TensorView& query, const TensorView& key, const TensorView& value,
                  const Position& position, const Options& options);

// The tables [heads, M] of the call's terms whose kind is "computed table", in their order. All numbers are read.
std::vector<std::vector<double>> computed_tables(const TensorView& query, const TensorView& key,
                                                 const TensorView& value, const Position& position,
                                                 const Options& options);
// Writes what the gradients of those tables give to parameters, in dparameters[part][parameter] where given.
void computed_tables_backward(const TensorView& query, const TensorView& key,
                              const TensorView& value, const Position& position,
                              const Options& options,
                              const std::vector<std::vector<double>>& gradients,
                              const std::vector<std::vector<TensorView>>& dparameters);

}  // namespace relpos
RELPOS_EXPORT_END
