#include "make_problem.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <tuple>

#include "base/parallel.h"
#include "base/strided.h"
#include "base/zeros.h"
#include "relpos/error.h"

namespace relpos {

void check_position(int64_t position, const char* name) {
  check_value(position > -kPositionLimit && position < kPositionLimit, name,
              ": expected positions within +-2^61, got ", position);
}

void refuse_to_guess(const std::string& why) {
  throw_error(
      ErrorKind::kValue, "q_offset: not given, and ", why,
      ". Say where the queries are: q_offset = Lk - Lq for a KV cache or memory; q_offset = 0 "
      "where both start at 0, as in the notebooks");
}

namespace {

// Written only when a check fails: a call's overhead is a few microseconds.
struct Dims {
  const std::vector<int64_t>& sizes;
};
std::ostream& operator<<(std::ostream& out, const Dims& dims) {
  return out << TensorView(nullptr, DType::kFloat32, dims.sizes).shape_text();
}
struct Shape {
  const TensorView& view;
};
std::ostream& operator<<(std::ostream& out, const Shape& shape) {
  return out << (shape.view.given() ? shape.view.shape_text() : "nothing");
}

void check_rank4(const TensorView& view, const char* name, const char* shape) {
  check_value(view.given() && view.rank == 4, name, ": expected ", shape, ", got ", Shape{view});
  if (!is_floating(view.dtype)) {
    throw_error(ErrorKind::kType, name, ": expected float32, float64, bfloat16 or float16, got ",
                dtype_name(view.dtype));
  }
}

void check_same_dtype(const TensorView& view, const TensorView& query, const char* name) {
  if (view.dtype != query.dtype) {
    throw_error(ErrorKind::kType, name, ": expected the dtype of query, ", dtype_name(query.dtype),
                ", got ", dtype_name(view.dtype));
  }
}

void check_int64(const TensorView& view, const char* name) {
  if (view.dtype != DType::kInt64) {
    throw_error(ErrorKind::kType, name, ": expected int64, got ", dtype_name(view.dtype));
  }
}

// [L] or [B, L] int64 -> rows of values.
std::vector<int64_t> read_rows(const TensorView& view, int64_t batch, int64_t length,
                               const char* name, int64_t& rows) {
  check_int64(view, name);
  const bool batched = view.rank == 2;
  check_value(
      (view.rank == 1 && view.shape[0] == length) ||
          (batched && view.shape[1] == length && (view.shape[0] == batch || view.shape[0] == 1)),
      name, ": expected int64 [", length, "] or [", batch, ", ", length, "], got ", Shape{view});
  rows = batched ? view.shape[0] : 1;
  std::vector<int64_t> values;
  values.reserve(static_cast<size_t>(rows * length));
  CancelTicks tick;
  for (int64_t b = 0; b < rows; ++b) {
    for (int64_t i = 0; i < length; ++i) {
      tick();
      values.push_back(view.load_int(batched ? view.offset({b, i}) : view.offset({i})));
    }
  }
  return values;
}

std::vector<int64_t> read_offset(const Offset& offset, int64_t batch, int64_t length,
                                 const char* name, int64_t& rows) {
  std::vector<int64_t> values{offset.value};
  rows = 1;
  if (offset.per_row.given()) {
    check_int64(offset.per_row, name);
    check_value(offset.per_row.rank == 1 && offset.per_row.shape[0] == batch, name,
                ": expected an int or int64 [", batch, "], got ", Shape{offset.per_row});
    rows = std::max<int64_t>(batch, 1);
    values.assign(static_cast<size_t>(rows), 0);
    for (int64_t b = 0; b < batch; ++b) {
      values[static_cast<size_t>(b)] = offset.per_row.load_int(offset.per_row.offset({b}));
    }
  }
  for (int64_t value : values) {
    check_position(value, name);
    check_position(value + length, name);
  }
  return values;
}

// Positions of consecutive tokens, given by their starts, where the position places them.
void place_tokens(const Position& position, Positions& positions) {
  std::vector<int64_t> q, k;
  for (const int64_t start : positions.q) {
    append_places(position, start, positions.queries, "q_offset", q);
  }
  for (const int64_t start : positions.k) {
    append_places(position, start, positions.keys, "k_offset", k);
  }
  positions.consecutive = false;
  positions.q = std::move(q);
  positions.k = std::move(k);
}

Positions read_positions(const Problem& problem, const Position& position, const Options& options) {
  const bool in_play = !position.parts.empty() || options.is_causal || options.window;
  Positions positions;
  positions.queries = problem.queries;
  positions.keys = problem.keys;
  const bool explicit_q = options.q_positions.given(), explicit_k = options.k_positions.given();
  const bool k_offset_given = options.k_offset.per_row.given() || options.k_offset.value != 0;
  check_value(explicit_q == explicit_k, explicit_q ? "k_positions" : "q_positions",
              ": give both q_positions and k_positions, or neither");
  if (explicit_q) {
    check_value(!options.q_offset && !k_offset_given,
                "q_positions: explicit positions and offsets exclude each other; drop q_offset and "
                "k_offset");
    positions.consecutive = false;
    positions.q = read_rows(options.q_positions, problem.batch, problem.queries, "q_positions",
                            positions.q_rows);
    positions.k = read_rows(options.k_positions, problem.batch, problem.keys, "k_positions",
                            positions.k_rows);
    for (int64_t p : positions.q) check_position(p, "q_positions");
    for (int64_t p : positions.k) check_position(p, "k_positions");
    return positions;
  }
  if (!options.q_offset) {
    if (k_offset_given) refuse_to_guess("k_offset is given");
    if (in_play && problem.queries != problem.keys) {
      std::ostringstream why;
      why << "Lq = " << problem.queries << " differs from Lk = " << problem.keys
          << " while a position, is_causal or window is in play";
      refuse_to_guess(why.str());
    }
  }
  positions.q = read_offset(options.q_offset.value_or(Offset(0)), problem.batch, problem.queries,
                            "q_offset", positions.q_rows);
  positions.k =
      read_offset(options.k_offset, problem.batch, problem.keys, "k_offset", positions.k_rows);
  if (places(position)) place_tokens(position, positions);
  return positions;
}

// First key of a row of positions that is >= bound.
int64_t first_key_at(const Positions& positions, int64_t b, int64_t bound) {
  if (positions.consecutive) {
    return std::clamp<int64_t>(bound - positions.key(b, 0), 0, positions.keys);
  }
  const int64_t row = positions.k_rows == 1 ? 0 : b;
  const auto begin = positions.k.begin() + row * positions.keys;
  return std::lower_bound(begin, begin + positions.keys, bound) - begin;
}

void read_intervals(Problem& problem, const Options& options) {
  const Positions& positions = problem.positions;
  const bool bounded = options.is_causal || options.window.has_value();
  std::pair<int64_t, int64_t> window{-1, options.is_causal ? 0 : -1};
  if (options.window) {
    check_value(options.window->first >= -1 && options.window->second >= -1,
                "window: expected (left, right) with -1 for no bound, got (", options.window->first,
                ", ", options.window->second, ")");
    window.first = std::min(options.window->first, kPositionLimit);
    const int64_t right = std::min(options.window->second, kPositionLimit);
    if (!options.is_causal) window.second = right;
  }
  if (bounded && !positions.consecutive) {
    for (int64_t b = 0; b < positions.k_rows; ++b) {
      const auto begin = positions.k.begin() + b * positions.keys;
      check_value(
          std::is_sorted(begin, begin + positions.keys),
          "k_positions: must not decrease when is_causal or window is given; say the boundary "
          "of each query with key_range instead");
    }
  }
  std::vector<int64_t> range_lo, range_hi;
  int64_t lo_rows = 1, hi_rows = 1;
  check_value(options.key_lo.given() == options.key_hi.given(),
              "key_range: expected (lo, hi), got one of them");
  if (options.key_lo.given()) {
    range_lo = read_rows(options.key_lo, problem.batch, problem.queries, "key_range lo", lo_rows);
    range_hi = read_rows(options.key_hi, problem.batch, problem.queries, "key_range hi", hi_rows);
  }
  if (!bounded && range_lo.empty() && range_hi.empty()) return;

  Visibility& visible = problem.visible;
  visible.rows = 1;
  if (bounded) visible.rows = std::max({visible.rows, positions.q_rows, positions.k_rows});
  visible.rows = std::max({visible.rows, lo_rows, hi_rows});
  visible.span.resize(static_cast<size_t>(visible.rows * problem.queries));
  CancelTicks tick;
  for (int64_t b = 0; b < visible.rows; ++b) {
    for (int64_t i = 0; i < problem.queries; ++i) {
      tick();
      int64_t lo = 0, hi = problem.keys;
      if (bounded && problem.keys > 0) {
        const int64_t at = positions.query(b, i);
        if (window.first >= 0) lo = first_key_at(positions, b, at - window.first);
        if (window.second >= 0) hi = first_key_at(positions, b, at + window.second + 1);
      }
      if (!range_lo.empty()) {
        lo = std::max(lo,
                      range_lo[static_cast<size_t>((lo_rows == 1 ? 0 : b) * problem.queries + i)]);
        hi = std::min(hi,
                      range_hi[static_cast<size_t>((hi_rows == 1 ? 0 : b) * problem.queries + i)]);
      }
      visible.span[static_cast<size_t>(b * problem.queries + i)] = {lo, std::max(lo, hi)};
    }
  }
}

void read_padding(Problem& problem, const TensorView& padding) {
  if (!padding.given()) return;
  if (padding.dtype != DType::kBool) {
    throw_error(ErrorKind::kType, "key_padding_mask: expected bool, got ",
                dtype_name(padding.dtype));
  }
  check_input(padding, {problem.batch, problem.keys}, "key_padding_mask");
  const int64_t words = problem.tiles();
  CancelTicks tick;
  problem.visible.key_bits.assign(static_cast<size_t>(problem.batch * words), 0);
  for (int64_t b = 0; b < problem.batch; ++b) {
    for (int64_t j = 0; j < problem.keys; ++j) {
      tick();
      if (padding.load_int(padding.offset({b, j})) == 0) {
        problem.visible.key_bits[static_cast<size_t>(b * words + j / kTile)] |= uint64_t{1}
                                                                                << (j % kTile);
      }
    }
  }
}

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

void check_coordinates(const Rotation& rotation, const Problem& problem, const std::string& who) {
  check_value(rotation.log_decay.empty(), who,
              ": a rotation whose pairs turn by coordinates cannot decay with the distance");
  check_value(rotation.coordinates != nullptr && std::ssize(rotation.axis) == rotation.dims / 2,
              who, ": expected coordinates, and an axis for each of ", rotation.dims / 2,
              " pairs, got ", rotation.axis.size());
  const Coordinates& at = *rotation.coordinates;
  for (const int axis : rotation.axis) {
    check_value(axis >= 0 && axis < at.axes, who, ": expected axes from 0 to ", at.axes - 1,
                ", got ", axis);
  }
  const auto check_side = [&](const std::vector<int64_t>& values, int64_t rows, int64_t length,
                              int64_t wanted, const char* side) {
    check_value((rows == 1 || rows == problem.batch) && length == wanted &&
                    std::ssize(values) == at.axes * rows * length,
                who, ": coordinates of ", side, ": expected [", at.axes, ", 1 or ", problem.batch,
                ", ", wanted, "], got ", values.size(), " numbers in ", rows, " rows of ", length);
    for (const int64_t value : values) check_position(value, "coordinates");
  };
  check_side(at.q, at.q_rows, at.queries, problem.queries, "queries");
  check_side(at.k, at.k_rows, at.keys, problem.keys, "keys");
}

void check_terms(const Terms& terms, const Problem& problem, const std::string& who) {
  const int64_t heads = problem.heads;
  for (const Rotation& rotation : terms.rotations) {
    check_value(rotation.dims % 2 == 0 && rotation.start >= 0 &&
                    rotation.start + rotation.dims <= problem.head_dim,
                who, ": rotates dims ", rotation.start, " to ", rotation.start + rotation.dims,
                " but query has head size ", problem.head_dim);
    if (!rotation.axis.empty()) check_coordinates(rotation, problem, who);
  }
  for (const TermData& added : terms.query_added) {
    check_shape(added, {heads, problem.head_dim}, who + ": vector added to the query");
  }
  for (const DistanceBias& bias : terms.biases) {
    if (bias.map) {
      check_value(bias.table.view.rank == 2 && bias.table.view.shape[0] == heads &&
                      bias.table.view.shape[1] >= bias.map->classes(),
                  who, ": its bias table is ", Shape{bias.table.view},
                  " ([heads, classes]) but query has ", heads, " heads");
    }
    if (bias.slopes.view.given()) check_shape(bias.slopes, {2, heads}, who + ": slopes");
  }
  for (const RowTable& rows : terms.row_tables) {
    int64_t rank = problem.head_dim;
    if (rows.factor.view.given()) {
      rank = rows.factor.view.shape[3];
      check_shape(rows.factor, {problem.batch, heads, problem.queries, rank}, who + ": row factor");
    }
    check_table(rows.table, heads, rows.map.classes(), rank, who);
    if (rows.added.view.given()) check_shape(rows.added, {heads, rank}, who + ": added vector");
  }
  for (const ColumnTable& columns : terms.column_tables) {
    int64_t rank = problem.head_dim;
    if (columns.factor.view.given()) {
      rank = columns.factor.view.shape[3];
      check_shape(columns.factor, {problem.batch, problem.kv_heads, problem.keys, rank},
                  who + ": column factor");
    }
    check_table(columns.table, heads, columns.map.classes(), rank, who);
  }
  for (const KeyBias& bias : terms.key_biases) {
    if (bias.values.view.rank == 2) {
      check_shape(bias.values, {heads, problem.keys}, who + ": key bias");
    } else {
      check_shape(bias.values, {problem.batch, heads, problem.keys}, who + ": key bias");
    }
  }
  if (!problem.value.given()) return;
  for (const ValueTable& values : terms.value_tables) {
    check_table(values.table, heads, values.map.classes(), problem.value_dim, who);
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

}  // namespace

namespace {

constexpr int64_t kUnknown = 0;  // of a size that a call without attention does not have

// A size of a spec: its own, or the call's.
int64_t size_of(int64_t size, const CallSizes& sizes) {
  switch (size) {
    case kBatch:
      return sizes.batch;
    case kHeads:
      return sizes.heads;
    case kQueries:
      return sizes.queries;
    case kKeys:
      return sizes.keys;
    default:
      return size;
  }
}

}  // namespace

void check_input(const TensorView& view, const std::vector<int64_t>& shape, const char* name) {
  check_value(view.given() && view.dims() == shape, name, ": expected ", Dims{shape}, ", got ",
              Shape{view});
}

void check_output(const TensorView& view, const std::vector<int64_t>& shape, DType dtype,
                  const char* name) {
  check_input(view, shape, name);
  if (view.dtype != dtype) {
    throw_error(ErrorKind::kType, name, ": expected ", dtype_name(dtype), ", got ",
                dtype_name(view.dtype));
  }
  if (view.numel() == 0) return;
  for (int axis = 0; axis < view.rank; ++axis) {
    check_value(
        view.shape[static_cast<size_t>(axis)] == 1 || view.strides[static_cast<size_t>(axis)] != 0,
        name, ": an output must not overlap itself, but axis ", axis, " has stride 0");
  }
}

TensorView broadcast_view(const TensorView& view, const std::vector<int64_t>& shape,
                          const char* name) {
  TensorView wide = view;
  wide.rank = static_cast<int>(shape.size());
  bool fits = view.rank <= wide.rank;
  for (int axis = wide.rank - 1; fits && axis >= 0; --axis) {
    const int from = axis - (wide.rank - view.rank);
    const auto at = static_cast<size_t>(axis);
    const int64_t size = from < 0 ? 1 : view.shape[static_cast<size_t>(from)];
    wide.strides[at] = size == 1 && shape[at] != 1 ? 0
                       : from < 0                  ? 0
                                                   : view.strides[static_cast<size_t>(from)];
    wide.shape[at] = shape[at];
    fits = size == 1 || size == shape[at];
  }
  check_value(fits, name, ": expected a shape that broadcasts to ", Dims{shape}, ", got ",
              Shape{view});
  return wide;
}

bool places(const Position& position) {
  return std::any_of(position.parts.begin(), position.parts.end(),
                     [](const Part& part) { return part.recipe && part.recipe->place; });
}

void append_places(const Position& position, int64_t first, int64_t count, const char* name,
                   std::vector<int64_t>& positions) {
  const Part* placing = nullptr;
  const size_t begin = positions.size();
  CancelTicks tick;
  for (const Part& part : position.parts) {
    if (!part.recipe->place) continue;
    for (int64_t n = 0; n < count; ++n) {
      tick();
      const int64_t at = part.recipe->place(first + n);
      check_position(at, name);
      if (placing == nullptr) {
        positions.push_back(at);
        continue;
      }
      check_value(positions[begin + static_cast<size_t>(n)] == at,
                  "position: ", placing->scheme().name, " and ", part.scheme().name,
                  " place token ", first + n, " at ", positions[begin + static_cast<size_t>(n)],
                  " and at ", at, "; give q_positions and k_positions that serve both");
    }
    placing = &part;
  }
}

void check_parameters(const Part& part, const CallSizes& sizes) {
  const std::vector<ParameterSpec>& specs = part.specs();
  const std::string& who = part.scheme().name;
  if (part.parameters.size() < specs.size() && specs[part.parameters.size()].input) {
    const ParameterSpec& missing = specs[part.parameters.size()];
    throw_error(ErrorKind::kValue, who, ": ", missing.name,
                ": missing; it is an input of each call (", missing.doc, "), given by position(",
                missing.name, ") in Python and by --input ", missing.name,
                "=FILE on the command line");
  }
  check_value(specs.size() == part.parameters.size(), who, ": expected ", specs.size(),
              " parameters, got ", part.parameters.size());
  for (size_t n = 0; n < specs.size(); ++n) {
    const TensorView& view = part.parameters[n];
    bool fits = view.given() && view.rank == static_cast<int>(specs[n].shape.size());
    for (size_t axis = 0; fits && axis < specs[n].shape.size(); ++axis) {
      const int64_t size = size_of(specs[n].shape[axis], sizes);
      fits = size == kUnknown || view.shape[axis] == size;
    }
    if (!fits) {
      std::vector<int64_t> expected;
      for (const int64_t size : specs[n].shape) expected.push_back(size_of(size, sizes));
      throw_error(ErrorKind::kValue, who, ": ", specs[n].name, ": expected ", Dims{expected},
                  ", got ", Shape{view});
    }
    if (!is_floating(view.dtype)) {
      throw_error(ErrorKind::kType, who, ": ", specs[n].name, ": expected a floating dtype, got ",
                  dtype_name(view.dtype));
    }
  }
}

ParameterSums zero_sums(const Part& part, const std::vector<bool>& wants) {
  ParameterSums sums(part.parameters.size());
  for (size_t p = 0; p < sums.size(); ++p) {
    if (wants[p]) sums[p] = zeros(part.parameters[p].numel());
  }
  return sums;
}

namespace {

// Binds every part to the call and joins their terms.
void bind_parts(Call& call, const Position& position) {
  Problem& problem = call.problem;
  call.sizes = {problem.batch, problem.heads,    problem.queries,
                problem.keys,  problem.head_dim, problem.value_dim};
  call.sizes.in_double = problem.query.dtype == DType::kFloat64;
  call.sizes.threads = problem.threads;
  call.wants.resize(position.parts.size());
  if (std::any_of(position.parts.begin(), position.parts.end(),
                  [](const Part& part) { return part.recipe && part.recipe->reads_distances; })) {
    std::tie(call.sizes.first_distance, call.sizes.last_distance) = problem.distance_range();
  }
  for (size_t n = 0; n < position.parts.size(); ++n) {
    const Part& part = position.parts[n];
    check_parameters(part, call.sizes);
    call.wants[n].resize(part.parameters.size(), false);
    Terms terms = part.recipe->bind({call.sizes, part.parameters, call.wants[n]});
    check_terms(terms, problem, part.scheme().name);
    call.counts.push_back({terms.biases.size(), terms.row_tables.size(), terms.column_tables.size(),
                           terms.key_biases.size(), terms.value_tables.size(),
                           terms.query_added.size()});
    problem.terms.append(std::move(terms));
  }
  check_rotations_disjoint(problem.terms);
}

}  // namespace

Call make_call(const TensorView& query, const TensorView& key, const TensorView& value,
               const Position& position, const Options& options,
               std::vector<std::vector<bool>> wants) {
  check_rank4(query, "query", "[B, H, Lq, D]");
  check_rank4(key, "key", "[B, Hk, Lk, D]");
  check_same_dtype(key, query, "key");

  Call call;
  Problem& problem = call.problem;
  problem.query = query;
  problem.key = key;
  problem.value = value;
  problem.batch = query.shape[0];
  problem.heads = query.shape[1];
  problem.queries = query.shape[2];
  problem.head_dim = query.shape[3];
  problem.kv_heads = key.shape[1];
  problem.keys = key.shape[2];
  check_input(key, {problem.batch, problem.kv_heads, problem.keys, problem.head_dim}, "key");
  check_value(problem.head_dim >= 1, "query: expected a head size of at least 1, got 0");
  check_value(problem.kv_heads == problem.heads || options.enable_gqa, "key: has ",
              problem.kv_heads, " heads and query ", problem.heads,
              "; pass enable_gqa=True to let groups of query heads share a key head");
  check_value(problem.heads == problem.kv_heads ||
                  (problem.kv_heads > 0 && problem.heads % problem.kv_heads == 0),
              "key: expected a number of heads that divides the ", problem.heads,
              " heads of query, got ", problem.kv_heads);
  if (value.given()) {
    check_rank4(value, "value", "[B, Hk, Lk, Dv]");
    check_same_dtype(value, query, "value");
    problem.value_dim = value.shape[3];
    check_input(value, {problem.batch, problem.kv_heads, problem.keys, problem.value_dim}, "value");
  }
  check_value(!options.scale || std::isfinite(*options.scale),
              "scale: expected a finite number, got ", options.scale.value_or(0));
  problem.scale = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(problem.head_dim)));
  check_value(options.dropout_p >= 0.0 && options.dropout_p <= 1.0,
              "dropout_p: expected a probability in [0, 1], got ", options.dropout_p);
  problem.dropout = Dropout(options.dropout_p, options.seed);
  problem.cancel = options.cancel;
  check_value(options.threads >= 0, "threads: expected 0 (the default) or more, got ",
              options.threads);
  problem.threads = thread_count(options.threads);

  problem.positions = read_positions(problem, position, options);
  problem.visible.queries = problem.queries;
  problem.visible.keys = problem.keys;
  read_intervals(problem, options);
  read_padding(problem, options.key_padding_mask);
  if (options.attn_mask.given()) {
    if (!is_floating(options.attn_mask.dtype) && options.attn_mask.dtype != DType::kBool) {
      throw_error(ErrorKind::kType,
                  "attn_mask: expected bool (True = attend) or a floating dtype, got ",
                  dtype_name(options.attn_mask.dtype));
    }
    problem.visible.mask =
        broadcast_view(options.attn_mask,
                       {problem.batch, problem.heads, problem.queries, problem.keys}, "attn_mask");
  }

  call.wants = std::move(wants);
  bind_parts(call, position);
  return call;
}

void write_values(const std::vector<double>& values, const TensorView& view) {
  CancelTicks tick;
  size_t n = 0;
  for_each_offset(view, [&](int64_t at) {
    tick();
    view.store(at, values[n++]);
  });
}

namespace {

template <typename T>
std::vector<T> take(std::vector<T>& all, size_t& from, size_t count) {
  const auto begin = std::make_move_iterator(all.begin() + static_cast<std::ptrdiff_t>(from));
  from += count;
  return {begin, begin + static_cast<std::ptrdiff_t>(count)};
}

}  // namespace

void pull_back_parts(const Call& call, const Position& position, TermGradients gradients,
                     const std::vector<std::vector<TensorView>>& parameters) {
  Call::TermCounts at{};
  for (size_t n = 0; n < position.parts.size() && n < parameters.size(); ++n) {
    const Part& part = position.parts[n];
    const Call::TermCounts& counts = call.counts[n];
    TermGradients own;
    own.biases = take(gradients.biases, at.biases, counts.biases);
    own.row_tables = take(gradients.row_tables, at.row_tables, counts.row_tables);
    own.column_tables = take(gradients.column_tables, at.column_tables, counts.column_tables);
    own.key_biases = take(gradients.key_biases, at.key_biases, counts.key_biases);
    own.value_tables = take(gradients.value_tables, at.value_tables, counts.value_tables);
    own.query_added = take(gradients.query_added, at.query_added, counts.query_added);
    const std::vector<bool>& wants = call.wants[n];
    ParameterSums sums = zero_sums(part, wants);
    part.recipe->pull_back({call.sizes, part.parameters, wants}, own, sums);
    for (size_t p = 0; p < sums.size(); ++p) {
      if (wants[p]) write_values(sums[p], parameters[n][p]);
    }
  }
}

}  // namespace relpos
