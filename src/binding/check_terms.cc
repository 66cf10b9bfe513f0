#include "binding/check_terms.h"

#include <algorithm>
#include <variant>

#include "base/parallel.h"
#include "relpos/error.h"
#include "values/views.h"

namespace relpos {
namespace {

void check_table(const TermData& data, int64_t heads, int64_t classes, int64_t columns,
                 const std::string& who) {
  const TensorView& view = data.view;
  const bool per_head = view.rank == 3;
  check_value((view.rank == 2 || (per_head && view.shape[0] == heads)) &&
                  view.shape[per_head ? 1 : 0] >= classes &&
                  view.shape[per_head ? 2 : 1] == columns,
              who, ": a table has shape ", Shape{view}, ", but this call needs [", classes, ", ",
              columns, "] or [", heads, ", ", classes, ", ", columns, "]");
}

void check_shape(const TermData& data, const std::vector<int64_t>& shape, const std::string& who) {
  check_value(data.view.dims() == shape, who, ": expected ", Dims{shape}, " for this call, got ",
              Shape{data.view});
}

// `limit`: coordinates stay below it.
void check_coordinates(const Coordinates& at, const CallShape& call, int64_t limit,
                       const std::string& who) {
  const auto check_side = [&](const std::vector<int64_t>& values, int64_t rows, int64_t length,
                              int64_t wanted, const char* side) {
    check_value((rows == 1 || rows == call.batch) && length == wanted &&
                    std::ssize(values) == at.axes * rows * length,
                who, ": coordinates of ", side, ": expected [", at.axes, ", 1 or ", call.batch,
                ", ", wanted, "], got ", values.size(), " numbers in ", rows, " rows of ", length);
    for (const int64_t value : values) {
      check_value(value > -limit && value < limit, who, ": coordinates of ", side,
                  ": expected numbers below ", limit, " on both sides of 0, got ", value);
    }
  };
  check_side(at.q, at.q_rows, at.queries, call.queries, "queries");
  check_side(at.k, at.k_rows, at.keys, call.keys, "keys");
}

void check_axis(const Coordinates& at, int axis, const std::string& who) {
  check_value(axis >= 0 && axis < at.axes, who, ": expected axes from 0 to ", at.axes - 1, ", got ",
              axis);
}

void check_angles(const Rotation::ByPosition&, int64_t, const CallShape&, const std::string&) {}

void check_angles(const Rotation::ByCoordinates& angles, int64_t pairs, const CallShape& call,
                  const std::string& who) {
  check_value(angles.coordinates != nullptr && std::ssize(angles.axis) == pairs, who,
              ": expected coordinates, and an axis for each of ", pairs, " pairs, got ",
              angles.axis.size());
  for (const int axis : angles.axis) check_axis(*angles.coordinates, axis, who);
  check_coordinates(*angles.coordinates, call, kPositionLimit, who);
}

void check_angles(const Rotation::ByHead& angles, int64_t pairs, const CallShape& call,
                  const std::string& who) {
  const TensorView& view = angles.frequency.view;
  check_value(angles.coordinates != nullptr && view.rank == 3 &&
                  view.shape[0] == angles.coordinates->axes &&
                  (view.shape[1] == 1 || view.shape[1] == call.kv_heads) && view.shape[2] == pairs,
              who, ": expected frequencies [axes, ", call.kv_heads, " or 1, ", pairs,
              "] for the heads of key, got ", Shape{view});
  check_coordinates(*angles.coordinates, call, kPositionLimit, who);
}

void check_angles(const Rotation::Tables& angles, int64_t pairs, const CallShape& call,
                  const std::string& who) {
  const auto check_side = [&](const TermData& cos, const TermData& sin, int64_t length) {
    const std::vector<int64_t> shape{call.batch, call.kv_heads, length, pairs};
    check_shape(cos, shape, who + ": cosines");
    check_shape(sin, shape, who + ": sines");
  };
  check_side(angles.q_cos, angles.q_sin, call.queries);
  check_side(angles.k_cos, angles.k_sin, call.keys);
}

// Of a term that is read by a coordinate.
template <typename Term>
void check_coordinates(const Term& term, const CallShape& call, const std::string& who) {
  constexpr int64_t kLimit = int64_t{1} << 29;  // their differences are int32 in the kernels
  if (term.coordinates == nullptr) return;
  check_axis(*term.coordinates, term.axis, who);
  check_coordinates(*term.coordinates, call, kLimit, who);
}

void check_rotation(const Rotation& rotation, const CallShape& call, const std::string& who) {
  check_value(rotation.dims % 2 == 0 && rotation.start >= 0 &&
                  rotation.start + rotation.dims <= call.head_dim,
              who, ": rotates dims ", rotation.start, " to ", rotation.start + rotation.dims,
              " but query has head size ", call.head_dim);
  check_pairs(rotation, who);
  std::visit([&](const auto& angles) { check_angles(angles, rotation.dims / 2, call, who); },
             rotation.angles);
}

void check_bias(const DistanceBias& bias, const CallShape& call, const std::string& who) {
  if (bias.map) {
    check_value(bias.table.view.rank == 2 && bias.table.view.shape[0] == call.heads &&
                    bias.table.view.shape[1] >= bias.map->classes(),
                who, ": its bias table is ", Shape{bias.table.view},
                " ([heads, classes]) but query has ", call.heads, " heads, and distances have ",
                bias.map->classes(), " classes");
  }
  check_coordinates(bias, call, who);
  check_value(bias.coordinates == nullptr || !bias.slopes.view.given(), who,
              ": slopes are of positions, not of coordinates");
  if (bias.slopes.view.given()) check_shape(bias.slopes, {2, call.heads}, who + ": slopes");
}

// The rank of a table: the size of its factor's last axis, whose other axes are `axes`; without a
// factor, the head size.
int64_t check_factor(const TermData& factor, std::vector<int64_t> axes, const CallShape& call,
                     const std::string& who) {
  if (!factor.view.given()) return call.head_dim;
  axes.push_back(factor.view.shape[3]);
  check_shape(factor, axes, who);
  return axes.back();
}

void check_row_table(const RowTable& rows, const CallShape& call, const std::string& who) {
  const int64_t heads = call.heads;
  const int64_t rank =
      check_factor(rows.factor, {call.batch, heads, call.queries}, call, who + ": row factor");
  check_table(rows.table, heads, rows.map.classes(), rank, who);
  check_coordinates(rows, call, who);
  if (rows.added.view.given()) check_shape(rows.added, {heads, rank}, who + ": added vector");
}

void check_column_table(const ColumnTable& columns, const CallShape& call, const std::string& who) {
  const int64_t rank = check_factor(columns.factor, {call.batch, call.kv_heads, call.keys}, call,
                                    who + ": column factor");
  check_table(columns.table, call.heads, columns.map.classes(), rank, who);
}

// The largest byte of a row other than `hidden`.
uint8_t largest_byte(const uint8_t* row, int64_t count, int64_t stride, int hidden) {
  uint8_t tops[64] = {};  // a vector of maxima
  int64_t j = 0;
  for (; stride == 1 && j + 64 <= count; j += 64) {
    for (int64_t n = 0; n < 64; ++n) {
      const uint8_t byte = row[j + n] == hidden ? uint8_t{0} : row[j + n];
      tops[n] = std::max(tops[n], byte);
    }
  }
  for (; j < count; ++j) {
    const uint8_t byte = row[j * stride];
    if (byte != hidden) tops[0] = std::max(tops[0], byte);
  }
  return *std::max_element(tops, tops + 64);
}

// Shape, dtype, and that no class other than the hidden one lies beyond a table of so many rows: one look
// at every byte, so that kernels need none. Views without memory have sizes alone.
void check_classes(const PairClasses& classes, int64_t rows, const CallShape& call,
                   const std::string& who) {
  const TensorView& view = classes.view;
  if (view.dtype != DType::kUInt8) {
    throw_error(ErrorKind::kType, who, ": classes: expected uint8, got ", dtype_name(view.dtype));
  }
  const bool batched = view.rank == 3;
  check_value(view.dims() == (batched ? std::vector{call.batch, call.queries, call.keys}
                                      : std::vector{call.queries, call.keys}),
              who, ": classes: expected [", call.queries, ", ", call.keys, "] or [", call.batch,
              ", ", call.queries, ", ", call.keys, "], got ", Shape{view});
  check_value(classes.hidden >= -1 && classes.hidden < kMostPairClasses, who,
              ": hidden: expected a class from 0 to ", kMostPairClasses - 1,
              ", or -1 for none, got ", classes.hidden);
  check_value(rows >= 1 && rows <= kMostPairClasses, who, ": expected a table of 1 to ",
              kMostPairClasses, " classes, got ", rows);
  if (rows == kMostPairClasses || view.data == nullptr) return;
  const auto* bytes = static_cast<const uint8_t*>(view.data);
  CancelTicks tick;
  for (int64_t n = 0; n < (batched ? call.batch : 1) * call.queries; ++n) {
    tick(call.keys / 64);
    const int64_t b = n / call.queries, i = n % call.queries;
    const int64_t at = batched ? view.offset({b, i, 0}) : view.offset({i, 0});
    const int64_t stride = view.strides[batched ? 2 : 1];
    const int largest = largest_byte(bytes + at, call.keys, stride, classes.hidden);
    check_value(largest < rows, who, ": classes: expected classes below ", rows,
                ", the rows of the table, got ", largest, " for query ", i);
  }
}

void check_pair_bias(const PairBias& bias, const CallShape& call, const std::string& who) {
  const TensorView& view = bias.table.view;
  check_value(view.rank == 2 && (view.shape[0] == call.heads || view.shape[0] == 1), who,
              ": expected a table [", call.heads, " or 1, classes] for the heads of query, got ",
              Shape{view});
  check_classes(bias.classes, view.shape[1], call, who);
}

void check_pair_rows(const PairRows& rows, const CallShape& call, const std::string& who) {
  const TensorView& view = rows.table.view;
  const int64_t rank =
      check_factor(rows.factor, {call.batch, call.heads, call.queries}, call, who + ": factor");
  const bool per_head = view.rank == 3;
  check_value((view.rank == 2 || (per_head && view.shape[0] == call.heads)) &&
                  view.shape[per_head ? 2 : 1] == rank,
              who, ": expected a table [classes, ", rank, "] or [", call.heads, ", classes, ", rank,
              "], got ", Shape{view});
  check_classes(rows.classes, view.shape[per_head ? 1 : 0], call, who);
}

}  // namespace

void check_pairs(const Rotation& rotation, const std::string& who) {
  const auto* position = rotation.by<Rotation::ByPosition>();
  const auto* axes = rotation.by<Rotation::ByCoordinates>();
  const int64_t pairs = rotation.dims / 2;
  const int64_t found = position != nullptr ? std::ssize(position->frequency)
                        : axes != nullptr   ? std::ssize(axes->frequency)
                                            : pairs;
  check_value(rotation.start >= 0 && rotation.dims >= 0 && rotation.dims % 2 == 0 && found == pairs,
              who, ": expected one frequency for each pair of ", rotation.dims, " dims, got ",
              found);
}

void check_terms(const Terms& terms, const CallShape& call, const std::string& who) {
  const int64_t heads = call.heads;
  for (const Rotation& rotation : terms.rotations) check_rotation(rotation, call, who);
  for (const TermData& added : terms.query_added) {
    check_shape(added, {heads, call.head_dim}, who + ": vector added to the query");
  }
  for (const DistanceBias& bias : terms.biases) check_bias(bias, call, who);
  for (const RowTable& rows : terms.row_tables) check_row_table(rows, call, who);
  for (const ColumnTable& columns : terms.column_tables) {
    check_column_table(columns, call, who);
  }
  for (const KeyBias& bias : terms.key_biases) {
    if (bias.values.view.rank == 2) {
      check_shape(bias.values, {heads, call.keys}, who + ": key bias");
    } else {
      check_shape(bias.values, {call.batch, heads, call.keys}, who + ": key bias");
    }
  }
  for (const PairBias& bias : terms.pair_biases) check_pair_bias(bias, call, who);
  for (const PairRows& rows : terms.pair_rows) check_pair_rows(rows, call, who);
  for (const TermData& sink : terms.sinks) {
    if (sink.view.rank == 1) {
      check_shape(sink, {heads}, who + ": sink");
    } else {
      check_shape(sink, {call.batch, heads, call.queries}, who + ": sink");
    }
  }
}

void check_value_tables(const Terms& terms, const CallShape& call, const std::string& who) {
  for (const ValueTable& values : terms.value_tables) {
    check_table(values.table, call.heads, values.map.classes(), call.value_dim, who);
  }
}

void check_rotations_disjoint(const Terms& terms) {
  for (size_t a = 0; a < terms.rotations.size(); ++a) {
    for (size_t b = a + 1; b < terms.rotations.size(); ++b) {
      const Rotation &x = terms.rotations[a], &y = terms.rotations[b];
      check_value(x.start + x.dims <= y.start || y.start + y.dims <= x.start,
                  "position: two rotations turn the same dims of a head; give each its own slice");
    }
  }
}

}  // namespace relpos
