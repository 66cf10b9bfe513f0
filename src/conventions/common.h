// The conventions of several schemes share these: how a matrix of pairs lies on positions, the
// classes that a scheme gives to distances, the axes of learned tables.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "relpos/conventions.h"
#include "relpos/error.h"

namespace relpos::conventions {

using Expected = decltype(Convention::expected);

// make_options with 1, false or the first choice for required options that are not given.
OptionMap with_stand_ins(const Scheme& scheme, const OptionValues& given);

// Throws Error where one of these integer options is given and below 1.
void check_sizes(const char* scheme, const OptionMap& given, const std::vector<const char*>& names);

// How a matrix of pairs lies on positions.
struct Arrangement {
  std::string text;  // "[query, key]", "[key, query] (transposed), q_offset 5"
  bool transposed = false;
  int64_t q_offset = 0;

  int64_t distance(int64_t row, int64_t column) const {
    return (transposed ? row - column : column - row) - q_offset;
  }
  const char* note() const { return transposed ? "transpose it first" : ""; }
};

// Both starts at 0, and where there are more keys than queries also both ends aligned; each as
// [query, key] and, with `transposed`, as [key, query].
std::vector<Arrangement> arrangements(int64_t rows, int64_t columns, bool transposed);

// The arrangements, none transposed, in which an integer matrix holds a size at distance 0, each
// with that size; none of another rank than 2.
std::vector<std::pair<Arrangement, int64_t>> arrangements_by_zero(const TensorView& matrix);

// The classes that a scheme gives to the distances -reach to reach; a matrix has none beyond
// rows + columns.
using Classes = std::vector<int64_t>;
Classes classes_of(const char* scheme, const OptionValues& options, int64_t reach);

// The class of each pair of a matrix [rows, columns].
Expected on_pairs(const Arrangement& arrangement, Classes classes);

// Values of a bias [heads, rows, columns] (heads_last: [rows, columns, heads]) that depend on the
// class of the distance alone: each pair is expected to have what the first one of its class in the
// first row or column has. A bias is constant on the classes of every finer map, too: with `apart`,
// empty unless some head tells each class from that of the next distance.
Expected constant_on_classes(const TensorView& bias, bool heads_last, bool apart,
                             const Arrangement& arrangement, const Classes& classes);

TensorView transposed(TensorView matrix);  // the last two axes

// A learned table [(heads,) rows, columns] as a tensor may hold it.
struct Table {
  std::string text;  // "table [columns, rows] (transposed), ", with names for both
  std::string note;  // "transpose it first; "
  bool transposed;
  TensorView values;  // [(heads,) rows, columns]
  int64_t heads;      // 0: no axis of heads
  int64_t rows, columns;
};

// The table as it is and transposed; there is none of another rank than 2 and 3.
std::vector<Table> tables(const CheckedTensor& tensor, const std::string& rows,
                          const std::string& columns);

// Three significant digits.
std::string short_number(double value);

}  // namespace relpos::conventions
