#include "call/make_problem.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "base/parallel.h"
#include "binding/check_terms.h"
#include "binding/coordinates.h"
#include "binding/parts.h"
#include "call/tile_mask.h"
#include "relpos/error.h"
#include "relpos/family.h"
#include "values/views.h"

namespace relpos {

void refuse_to_guess(const std::string& why) {
  throw_error(
      ErrorKind::kValue, "q_offset: not given, and ", why,
      ". Say where the queries are: q_offset = Lk - Lq for a KV cache or memory; q_offset = 0 "
      "where both start at 0, as in the notebooks");
}

namespace {

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

// [L] or [B, L] int64 -> rows of values; one of zeros where there is no batch row, for a first one is read.
std::vector<int64_t> read_rows(const TensorView& view, int64_t batch, int64_t length,
                               const char* name, int64_t& rows) {
  check_int64(view, name);
  const bool batched = view.rank == 2;
  check_value(
      (view.rank == 1 && view.shape[0] == length) ||
          (batched && view.shape[1] == length && (view.shape[0] == batch || view.shape[0] == 1)),
      name, ": expected int64 [", length, "] or [", batch, ", ", length, "], got ", Shape{view});
  rows = batched ? std::max<int64_t>(view.shape[0], 1) : 1;
  std::vector<int64_t> values(static_cast<size_t>(rows * length));
  CancelTicks tick;
  for (int64_t b = 0; b < rows && view.numel() > 0; ++b) {
    for (int64_t i = 0; i < length; ++i) {
      tick();
      values[static_cast<size_t>(b * length + i)] =
          view.load_int(batched ? view.offset({b, i}) : view.offset({i}));
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

// TokenPositions of consecutive tokens, given by their starts, where the position places them.
void place_tokens(const Position& position, TokenPositions& positions) {
  std::vector<int64_t> q, k;
  for (const int64_t start : positions.q) {
    append_places(position, Side::kQuery, start, positions.queries, "q_offset", q);
  }
  for (const int64_t start : positions.k) {
    append_places(position, Side::kKey, start, positions.keys, "k_offset", k);
  }
  positions.consecutive = false;
  positions.q = std::move(q);
  positions.k = std::move(k);
}

TokenPositions read_positions(const Problem& problem, const Position& position,
                              const Options& options) {
  const bool in_play = std::any_of(position.parts.begin(), position.parts.end(), reads_positions) ||
                       options.is_causal || options.window;
  TokenPositions positions;
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
int64_t first_key_at(const TokenPositions& positions, int64_t b, int64_t bound) {
  if (positions.consecutive) {
    return std::clamp<int64_t>(bound - positions.key(b, 0), 0, positions.keys);
  }
  const int64_t row = positions.k_rows == 1 ? 0 : b;
  const auto begin = positions.k.begin() + row * positions.keys;
  return std::lower_bound(begin, begin + positions.keys, bound) - begin;
}

void read_intervals(Problem& problem, const Options& options) {
  const TokenPositions& positions = problem.positions;
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

// The heads of the call among those that the position has.
HeadSlice read_heads(int64_t own, const Options& options) {
  const int64_t all = options.all_heads == 0 ? own : options.all_heads, first = options.first_head;
  check_value(all >= own && first >= 0 && first <= all - own, "first_head: expected the ", own,
              " heads of query from it on among all ", all, ", got ", first);
  return {first, own, all};
}

void read_dropout(Problem& problem, const Options& options) {
  check_value(options.dropout_p >= 0.0 && options.dropout_p <= 1.0,
              "dropout_p: expected a probability in [0, 1], got ", options.dropout_p);
  problem.dropout = Dropout(options.dropout_p, options.seed);
  if (!problem.dropout.active()) return;
  const auto read = [](const TensorView& numbers, int64_t length, const char* name) {
    int64_t rows = 1;
    if (!numbers.given()) return std::vector<int64_t>{};
    check_value(numbers.rank == 1, name, ": expected int64 [", length, "], got ", Shape{numbers});
    std::vector<int64_t> found = read_rows(numbers, 1, length, name, rows);
    check_value(std::all_of(found.begin(), found.end(), [](int64_t n) { return n >= 0; }), name,
                ": expected numbers from 0 on");
    return found;
  };
  problem.dropout.place(options.first_head,
                        read(options.dropout_rows, problem.queries, "dropout_rows"),
                        read(options.dropout_columns, problem.keys, "dropout_columns"));
}

// Pairs of the hidden classes of these terms are not seen.
void hide_classes(const Terms& terms, Visibility& visible) {
  const auto hide = [&](const PairClasses& classes) {
    if (classes.hidden >= 0) visible.classes.push_back(classes);
  };
  for (const PairBias& bias : terms.pair_biases) hide(bias.classes);
  for (const PairRows& rows : terms.pair_rows) hide(rows.classes);
}

// Binds every part to the call, a piece of one of this length (0: all of it), and joins their terms.
void bind_parts(Call& call, const Position& position, int64_t length, bool shapes_only) {
  Problem& problem = call.problem;
  call.sizes = {problem.batch, call.heads.all,   problem.queries,
                problem.keys,  problem.head_dim, problem.value_dim};
  call.sizes.own_heads = problem.heads;
  call.sizes.own_kv_heads = problem.kv_heads;
  if (call.heads.whole()) call.sizes.kv_heads = problem.kv_heads;
  call.sizes.in_double = problem.query.dtype == DType::kFloat64;
  call.sizes.threads = problem.threads;
  call.sizes.shapes_only = shapes_only;
  call.wants.resize(position.parts.size());
  if (reads_distances(position)) {
    std::tie(call.sizes.first_distance, call.sizes.last_distance) = problem.distance_range();
  }
  if (reads_length(position)) {
    const int64_t own = length_of(problem.positions);
    check_value(length == 0 || length >= own, "length: expected that of the whole call, at least ",
                own, ", got ", length);
    call.sizes.length = std::max(own, length);
  }
  if (has_reach(position)) call.sizes.last_query = last_query_of(problem.positions);
  const Part* up_to_query = nullptr;
  for (size_t n = 0; n < position.parts.size(); ++n) {
    const Part& part = position.parts[n];
    check_parameters(part, call.sizes);
    call.wants[n].resize(part.parameters.size(), false);
    Terms terms =
        part.recipe->bind({call.sizes, part.parameters, call.wants[n], &problem.positions});
    if (!call.heads.whole()) call.whole.append(terms);
    terms = call.heads.cut(std::move(terms));
    check_terms(terms, problem, part.scheme().name);
    if (problem.value.given()) check_value_tables(terms, problem, part.scheme().name);
    hide_classes(terms, problem.visible);
    for (const KeyBias& bias : terms.key_biases) {
      if (bias.up_to_query) up_to_query = &part;
    }
    problem.terms.append(std::move(terms));
  }
  check_rotations_disjoint(problem.terms);
  if (up_to_query == nullptr) return;
  const auto refuse = [&](bool given, const char* what) {
    check_value(!given, what, ": expected none beside ", up_to_query->scheme().name,
                ", whose scores lack a number for each query; a softmax alone does not need it");
  };
  refuse(!problem.terms.sinks.empty(), "sinks");
  refuse(problem.softcap != 0.0, "softcap");
}

// Batch, heads, lengths and sizes of the three tensors.
void read_sizes(Problem& problem, const TensorView& query, const TensorView& key,
                const TensorView& value, bool enable_gqa) {
  check_rank4(query, "query", "[B, H, Lq, D]");
  check_rank4(key, "key", "[B, Hk, Lk, D]");
  check_same_dtype(key, query, "key");
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
  check_value(problem.kv_heads == problem.heads || enable_gqa, "key: has ", problem.kv_heads,
              " heads and query ", problem.heads,
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
}

void read_numbers(Problem& problem, const Options& options) {
  check_value(!options.scale || std::isfinite(*options.scale),
              "scale: expected a finite number, got ", options.scale.value_or(0));
  problem.scale = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(problem.head_dim)));
  problem.softcap = options.softcap.value_or(0.0);
  check_value(!options.softcap || (problem.softcap >= 1e-30 && problem.softcap <= 1e30),
              "softcap: expected a number from 1e-30 to 1e30, got ", problem.softcap);
  if (options.float32_products) problem.kernels = &tile_kernels();
  problem.adds_sinks = options.adds_sinks;
  read_dropout(problem, options);
  problem.cancel = options.cancel;
  check_value(options.threads >= 0, "threads: expected 0 (the default) or more, got ",
              options.threads);
  problem.threads = thread_count(options.threads);
}

void read_mask(Problem& problem, const TensorView& mask) {
  if (!mask.given()) return;
  if (!is_floating(mask.dtype) && mask.dtype != DType::kBool) {
    throw_error(ErrorKind::kType,
                "attn_mask: expected bool (True = attend) or a floating dtype, got ",
                dtype_name(mask.dtype));
  }
  problem.visible.mask = broadcast_view(
      mask, {problem.batch, problem.heads, problem.queries, problem.keys}, "attn_mask");
}

}  // namespace

Call make_call(const TensorView& query, const TensorView& key, const TensorView& value,
               const Position& position, const Options& options,
               std::vector<std::vector<bool>> wants, bool shapes_only) {
  Call call;
  Problem& problem = call.problem;
  read_sizes(problem, query, key, value, options.enable_gqa);
  read_numbers(problem, options);
  call.heads = read_heads(problem.heads, options);
  problem.positions = read_positions(problem, position, options);
  problem.visible.queries = problem.queries;
  problem.visible.keys = problem.keys;
  read_intervals(problem, options);
  read_padding(problem, options.key_padding_mask);
  read_mask(problem, options.attn_mask);
  problem.visible.tiles = read_tile_mask(options.tile_mask, problem);
  call.wants = std::move(wants);
  bind_parts(call, position, options.length, shapes_only);
  return call;
}

}  // namespace relpos
