// Calls of every entry of the public API that reads or writes tensors, by seed: what they are given comes
// from a Maker, so that a test decides where it lies. For tests of memory.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <string>
#include <utility>
#include <vector>

#include "relpos/attention.h"
#include "relpos/conventions.h"
#include "relpos/dense.h"
#include "relpos/error.h"
#include "testing/random_problem.h"

namespace relpos::entries {

using random_terms::chance;
using random_terms::draw;
using random_terms::one_of;
using random_terms::Rng;

// Where the tensors of a call lie.
class Maker {
 public:
  virtual ~Maker() = default;
  // A tensor with these numbers. `free`: entries of an axis may share memory, and then have the numbers
  // of the first.
  virtual TensorView input(Tensor numbers, bool free = true) = 0;
  // Contiguous and aligned to its elements.
  virtual TensorView gapless(Tensor numbers) = 0;
  virtual TensorView output(DType dtype, const std::vector<int64_t>& shape) = 0;
};

struct Case {
  uint64_t seed = 0;
  std::string position;  // as parse_position reads it; heads and head_dim may be missing
  DType dtype = DType::kFloat32;
  int64_t batch = 1, heads = 2, kv_heads = 2, queries = 4, keys = 4, head_dim = 4, value_dim = 4;
  Path path = Path::kAuto;
  int threads = 0;

  std::string text() const {
    std::ostringstream line;
    line << "seed " << seed << ", position \"" << position << "\", " << dtype_name(dtype) << ", B "
         << batch << ", H " << heads << ", Hk " << kv_heads << ", Lq " << queries << ", Lk " << keys
         << ", D " << head_dim << ", Dv " << value_dim
         << (path == Path::kReference ? ", reference" : "");
    return line.str();
  }
};

inline Tensor filled(DType dtype, const std::vector<int64_t>& shape,
                     const std::function<double(int64_t)>& value) {
  Tensor made(dtype, shape);
  for (int64_t n = 0; n < made.view().numel(); ++n) made.view().store(n, value(n));
  return made;
}

inline Tensor drawn(Rng& rng, DType dtype, const std::vector<int64_t>& shape) {
  return filled(dtype, shape,
                [&](int64_t) { return static_cast<double>(rng() >> 40) * 0x1p-23 - 1.0; });
}

// The arguments of one call of attention.
struct Arguments {
  TensorView query, key, value;
  Position position;
  Options options;
};

// A position with its parameters and inputs; integers are 0 and 1.
inline Position make_position(const Case& c, Rng& rng, Maker& maker) {
  Position position = parse_position(c.position, {{"heads", c.heads}, {"head_dim", c.head_dim}});
  const InputSizes sizes{c.batch, c.heads, c.queries, c.keys, c.head_dim};
  const DType dtype = chance(rng, 0.5) ? c.dtype : DType::kFloat32;
  for (Part& part : position.parts) {
    for (const ParameterSpec& spec : part.specs()) {
      const std::vector<int64_t> shape = sizes.example(spec);
      part.parameters.push_back(
          spec.integers()
              ? maker.input(filled(spec.integer, shape, [](int64_t n) { return n % 2; }))
              : maker.input(drawn(rng, dtype, shape)));
    }
  }
  return position;
}

inline void draw_mask(const Case& c, Rng& rng, Maker& maker, Options& options) {
  const std::vector<std::vector<int64_t>> shapes{
      {c.queries, c.keys},
      {1, 1, c.queries, c.keys},
      {c.batch, 1, c.queries, c.keys},
      {c.batch, c.heads, c.queries, c.keys},
      {1, c.heads, 1, c.keys},
      {c.batch, 1, c.queries, 1},
  };
  const std::vector<int64_t>& shape = shapes[static_cast<size_t>(draw(rng, 0, 5))];
  if (chance(rng, 0.5)) {
    options.attn_mask =
        maker.input(drawn(rng, chance(rng, 0.5) ? c.dtype : DType::kFloat32, shape));
  } else {
    options.attn_mask =
        maker.input(filled(DType::kBool, shape, [&](int64_t) { return chance(rng, 0.7); }));
  }
}

// Where tokens stand: offsets, those of each row, or explicit positions that do not decrease.
inline void draw_places(const Case& c, Rng& rng, Maker& maker, Options& options) {
  const auto rows = [&](int64_t length) {
    const bool own = chance(rng, 0.5);
    int64_t at = 0;
    return maker.input(
        filled(DType::kInt64,
               own ? std::vector<int64_t>{c.batch, length} : std::vector<int64_t>{length},
               [&](int64_t n) {
                 return static_cast<double>(at = n % length == 0 ? 0 : at + draw(rng, 0, 2));
               }),
        false);
  };
  const auto starts = [&] {
    return Offset(maker.input(filled(
        DType::kInt64, {c.batch}, [&](int64_t) { return static_cast<double>(draw(rng, 0, 5)); })));
  };
  switch (draw(rng, 0, 3)) {
    case 0:
      options.q_offset = c.keys - std::min(c.queries, c.keys);
      return;
    case 1:
      options.q_offset = starts();
      options.k_offset = starts();
      return;
    case 2:
      options.q_positions = rows(c.queries);
      options.k_positions = rows(c.keys);
      return;
    default:
      options.q_offset = Offset(0);
  }
}

inline void draw_ranges(const Case& c, Rng& rng, Maker& maker, Options& options) {
  const std::vector<int64_t> shape =
      chance(rng, 0.5) ? std::vector<int64_t>{c.batch, c.queries} : std::vector<int64_t>{c.queries};
  options.key_lo = maker.input(filled(DType::kInt64, shape, [&](int64_t) {
    return static_cast<double>(draw(rng, 0, c.keys / 2));
  }));
  options.key_hi = maker.input(filled(DType::kInt64, shape, [&](int64_t) {
    return static_cast<double>(draw(rng, c.keys / 2, c.keys));
  }));
}

// All tiles in part.
inline void draw_tile_mask(const Case& c, Rng& rng, Maker& maker, Options& options) {
  const int64_t rows = one_of(rng, {96, 5, c.queries});
  const int64_t blocks = (c.queries + rows - 1) / rows, tiles = (c.keys + 63) / 64;
  TileMask& mask = options.tile_mask;
  mask.queries = c.queries;
  mask.keys = c.keys;
  mask.ranges =
      maker.input(filled(DType::kInt64, {1, 1, blocks, 2},
                         [&](int64_t n) { return static_cast<double>((n + 1) / 2 * tiles); }),
                  false);
  mask.entries = maker.gapless(filled(DType::kInt64, {blocks * tiles, 2}, [&](int64_t n) {
    return static_cast<double>(n % 2 == 0 ? n / 2 % tiles : n / 2);
  }));
  mask.words = maker.gapless(filled(DType::kInt64, {blocks * tiles, rows}, [&](int64_t) {
    return chance(rng, 0.5) ? -1.0 : static_cast<double>(rng() >> 12);
  }));
}

inline void draw_dropout(const Case& c, Rng& rng, Maker& maker, Options& options) {
  options.dropout_p = 0.3;
  options.seed = rng();
  if (chance(rng, 0.5)) return;
  const auto numbers = [&](int64_t length) {
    return maker.input(
        filled(DType::kInt64, {length}, [&](int64_t n) { return static_cast<double>(3 * n); }));
  };
  options.dropout_rows = numbers(c.queries);
  options.dropout_columns = numbers(c.keys);
}

inline Arguments make_arguments(const Case& c, Rng& rng, Maker& maker) {
  Arguments made;
  made.position = make_position(c, rng, maker);
  made.query = maker.input(drawn(rng, c.dtype, {c.batch, c.heads, c.queries, c.head_dim}));
  made.key = maker.input(drawn(rng, c.dtype, {c.batch, c.kv_heads, c.keys, c.head_dim}));
  made.value = maker.input(drawn(rng, c.dtype, {c.batch, c.kv_heads, c.keys, c.value_dim}));
  Options& options = made.options;
  options.enable_gqa = true;
  options.path = c.path;
  options.threads = c.threads;
  draw_places(c, rng, maker, options);
  if (chance(rng, 0.4)) draw_mask(c, rng, maker, options);
  if (chance(rng, 0.2)) draw_tile_mask(c, rng, maker, options);
  if (chance(rng, 0.3)) {
    options.key_padding_mask = maker.input(
        filled(DType::kBool, {c.batch, c.keys}, [&](int64_t) { return chance(rng, 0.3); }));
  }
  if (chance(rng, 0.2)) draw_ranges(c, rng, maker, options);
  if (chance(rng, 0.2)) draw_dropout(c, rng, maker, options);
  options.is_causal = chance(rng, 0.3);
  if (chance(rng, 0.2)) options.window = {draw(rng, -1, 9), draw(rng, -1, 9)};
  if (chance(rng, 0.2)) options.softcap = 2.5;
  return made;
}

// Parameters that have gradients, as outputs.
inline std::vector<TensorView> gradients_of(const Part& part, Maker& maker) {
  std::vector<TensorView> views;
  for (size_t n = 0; n < part.parameters.size(); ++n) {
    const TensorView& parameter = part.parameters[n];
    views.push_back(part.specs()[n].integers() ? TensorView{}
                                               : maker.output(parameter.dtype, parameter.dims()));
  }
  return views;
}

inline Gradients make_gradients(const Arguments& a, bool value, Maker& maker) {
  Gradients made;
  made.query = maker.output(a.query.dtype, a.query.dims());
  made.key = maker.output(a.key.dtype, a.key.dims());
  if (value) made.value = maker.output(a.value.dtype, a.value.dims());
  for (const Part& part : a.position.parts) made.parameters.push_back(gradients_of(part, maker));
  const TensorView& mask = a.options.attn_mask;
  if (mask.given() && is_floating(mask.dtype)) {
    made.attn_mask = maker.output(mask.dtype, mask.dims());
  }
  return made;
}

// What the forward pass leaves, by memory of its own.
struct Forward {
  Tensor out, softmax, lse;

  Forward(const Case& c, const Arguments& a) {
    const DType wide = c.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
    out = Tensor(c.dtype, {c.batch, c.heads, c.queries, c.value_dim});
    lse = Tensor(wide, {c.batch, c.heads, c.queries});
    softmax = Tensor(wide, {c.batch, c.heads, c.queries, 2});
    attention(a.query, a.key, a.value, a.position, a.options, out.view(), lse.view(),
              softmax.view());
  }
};

using Call = std::function<void()>;  // holds views of what the Maker made

inline Call forward_call(const Case& c, Maker& maker) {
  Rng rng(c.seed);
  const Arguments a = make_arguments(c, rng, maker);
  const DType wide = c.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  const TensorView out = maker.output(c.dtype, {c.batch, c.heads, c.queries, c.value_dim}),
                   lse = maker.output(chance(rng, 0.3) ? DType::kFloat64 : wide,
                                      {c.batch, c.heads, c.queries}),
                   softmax = maker.output(wide, {c.batch, c.heads, c.queries, 2});
  return [=] { attention(a.query, a.key, a.value, a.position, a.options, out, lse, softmax); };
}

inline Call backward_call(const Case& c, Maker& maker) {
  Rng rng(c.seed);
  const Arguments a = make_arguments(c, rng, maker);
  const Forward forward(c, a);
  const TensorView out = maker.input(forward.out, false),
                   softmax = maker.input(chance(rng, 0.5) ? forward.softmax : forward.lse, false),
                   dout = maker.input(drawn(rng, c.dtype, out.dims())),
                   dlse = chance(rng, 0.5)
                              ? maker.input(drawn(rng, DType::kFloat32, forward.lse.view().dims()))
                              : TensorView{};
  const Gradients gradients = make_gradients(a, true, maker);
  return [=] {
    attention_backward(a.query, a.key, a.value, out, softmax, dout, dlse, a.position, a.options,
                       gradients);
  };
}

inline Call weights_call(const Case& c, Maker& maker) {
  Rng rng(c.seed);
  const Arguments a = make_arguments(c, rng, maker);
  const TensorView softmax = maker.input(Forward(c, a).softmax, false),
                   weights = maker.output(c.dtype, {c.batch, c.heads, c.queries, c.keys});
  return [=] { attention_weights(a.query, a.key, softmax, a.position, a.options, weights); };
}

inline Call scores_call(const Case& c, Maker& maker) {
  Rng rng(c.seed);
  const Arguments a = make_arguments(c, rng, maker);
  const TensorView all = maker.output(c.dtype, {c.batch, c.heads, c.queries, c.keys});
  return [=] { scores(a.query, a.key, a.position, a.options, all); };
}

inline Call scores_backward_call(const Case& c, Maker& maker) {
  Rng rng(c.seed);
  const Arguments a = make_arguments(c, rng, maker);
  const TensorView dscores =
      maker.input(drawn(rng, c.dtype, {c.batch, c.heads, c.queries, c.keys}));
  const Gradients gradients = make_gradients(a, false, maker);
  return [=] { scores_backward(a.query, a.key, dscores, a.position, a.options, gradients); };
}

inline Grid grid_of(const Case& c, Rng& rng) { return {c.queries, c.keys, draw(rng, 0, 3)}; }

// "key", or "value" where the part has no dense form of the first kind.
inline std::string form_of(const Part& part, const Grid& grid, Rng& rng) {
  if (chance(rng, 0.6)) return "key";
  try {
    dense_shape(part, grid, "value");
    return "value";
  } catch (const Error&) {
    return "key";
  }
}

inline Call dense_call(const Case& c, Maker& maker) {
  Rng rng(c.seed);
  const Part part = make_position(c, rng, maker).parts.at(0);
  const Grid grid = grid_of(c, rng);
  const std::string which = form_of(part, grid, rng);
  const TensorView out = maker.output(c.dtype, dense_shape(part, grid, which));
  return [=] { dense(part, grid, which, out); };
}

inline Call dense_backward_call(const Case& c, Maker& maker) {
  Rng rng(c.seed);
  const Part part = make_position(c, rng, maker).parts.at(0);
  const Grid grid = grid_of(c, rng);
  const std::string which = form_of(part, grid, rng);
  const TensorView dout = maker.input(drawn(rng, c.dtype, dense_shape(part, grid, which)));
  const std::vector<TensorView> gradients = gradients_of(part, maker);
  return [=] { dense_backward(part, grid, which, dout, gradients); };
}

inline Call indices_call(const Case& c, Maker& maker) {
  Rng rng(c.seed);
  const Part part = make_position(c, rng, maker).parts.at(0);
  const TensorView out = maker.output(DType::kInt64, {c.queries, c.keys});
  const Grid grid = grid_of(c, rng);
  return [=] { indices(part, grid, out); };
}

// The matrices of a grid have their own memory, so a small one is enough.
inline Call steps_call(const Case& c, Maker& maker) {
  Rng rng(c.seed);
  const Part part = make_position(c, rng, maker).parts.at(0);
  return [part, small = Grid{std::min<int64_t>(c.queries, 7), std::min<int64_t>(c.keys, 7), 1}] {
    steps(part, small);
  };
}

inline std::vector<int64_t> table_shape(const Part& part, int64_t length) {
  const int64_t heads = rotary_heads(part), dims = rotary_dims(part);
  return heads > 0 ? std::vector<int64_t>{heads, length, dims} : std::vector<int64_t>{length, dims};
}

inline Call rotary_tables_call(const Case& c, Maker& maker) {
  Rng rng(c.seed);
  const Part part = make_position(c, rng, maker).parts.at(0);
  const DType dtype = chance(rng, 0.5) ? DType::kFloat32 : DType::kFloat64;
  const std::vector<int64_t> shape = table_shape(part, c.queries);
  const TensorView cos = maker.output(dtype, shape), sin = maker.output(dtype, shape);
  return [=, length = c.queries] { rotary_tables(part, length, 3, cos, sin); };
}

inline Call rotary_tables_backward_call(const Case& c, Maker& maker) {
  Rng rng(c.seed);
  const Part part = make_position(c, rng, maker).parts.at(0);
  const std::vector<int64_t> shape = table_shape(part, c.queries);
  const TensorView dcos = maker.input(drawn(rng, DType::kFloat32, shape)),
                   dsin = maker.input(drawn(rng, DType::kFloat32, shape));
  const std::vector<TensorView> gradients = gradients_of(part, maker);
  return [=] { rotary_tables_backward(part, 3, dcos, dsin, gradients); };
}

// Positions of the rows, where the seed gives them.
inline TensorView rows_at(const Case& c, Rng& rng, Maker& maker) {
  if (chance(rng, 0.5)) return {};
  return maker.input(
      filled(DType::kInt64, {c.queries}, [](int64_t n) { return static_cast<double>(n); }));
}

inline Call rotate_call(const Case& c, Maker& maker) {
  Rng rng(c.seed);
  const Part part = make_position(c, rng, maker).parts.at(0);
  const std::vector<int64_t> shape{c.batch, c.heads, c.queries, c.head_dim};
  const TensorView x = maker.input(drawn(rng, c.dtype, shape)), at = rows_at(c, rng, maker),
                   out = maker.output(c.dtype, shape);
  const bool inverse = chance(rng, 0.5);
  return [=] { rotate(part, x, 0, at, inverse, out); };
}

inline Call rotate_backward_call(const Case& c, Maker& maker) {
  Rng rng(c.seed);
  const Part part = make_position(c, rng, maker).parts.at(0);
  const std::vector<int64_t> shape{c.batch, c.heads, c.queries, c.head_dim};
  const TensorView x = maker.input(drawn(rng, c.dtype, shape)), at = rows_at(c, rng, maker),
                   dout = maker.input(drawn(rng, c.dtype, shape));
  const std::vector<TensorView> gradients = gradients_of(part, maker);
  return [=] { rotate_backward(part, x, 0, at, false, dout, gradients); };
}

// A tensor of another project judged by its shape and numbers.
inline Call check_call(const Case& c, Maker& maker) {
  Rng rng(c.seed);
  const Scheme* scheme = find_scheme(chance(rng, 0.5) ? "alibi" : "t5");
  const TensorView tensor = maker.input(drawn(rng, c.dtype, {1, c.heads, c.queries, c.keys}));
  return [=, heads = c.heads] { check(*scheme, {{"heads", heads}}, tensor); };
}

struct Entry {
  const char* name;
  Call (*prepare)(const Case& c, Maker& maker);                 // may throw Error, as the call may
  enum class Kind { kCall, kPart, kPlain } kind = Kind::kCall;  // kPart: not without a position

  // Whether SIMD kernels compute it.
  bool by_kernels() const noexcept { return kind == Kind::kCall; }
  bool of_part() const noexcept { return kind == Kind::kPart; }
};

inline constexpr Entry kEntries[] = {
    {"attention", forward_call},
    {"attention_backward", backward_call},
    {"attention_weights", weights_call},
    {"scores", scores_call},
    {"scores_backward", scores_backward_call},
    {"dense", dense_call, Entry::Kind::kPart},
    {"dense_backward", dense_backward_call, Entry::Kind::kPart},
    {"indices", indices_call, Entry::Kind::kPart},
    {"steps", steps_call, Entry::Kind::kPart},
    {"rotary_tables", rotary_tables_call, Entry::Kind::kPart},
    {"rotary_tables_backward", rotary_tables_backward_call, Entry::Kind::kPart},
    {"rotate", rotate_call, Entry::Kind::kPart},
    {"rotate_backward", rotate_backward_call, Entry::Kind::kPart},
    {"check", check_call, Entry::Kind::kPlain},
};

}  // namespace relpos::entries
