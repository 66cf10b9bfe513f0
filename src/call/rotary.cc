// Rotations of one part outside an attention call.
#include <algorithm>
#include <array>
#include <utility>

#include "base/parallel.h"
#include "binding/bound_part.h"
#include "binding/check_terms.h"
#include "binding/coordinates.h"
#include "binding/parts.h"
#include "relpos/dense.h"
#include "relpos/error.h"
#include "values/turns.h"
#include "values/views.h"

namespace relpos {
namespace {

CallSizes sizes_of(int64_t head_dim, const TokenPositions* at) {
  CallSizes sizes;
  sizes.head_dim = head_dim;
  if (at != nullptr) sizes.length = length_of(*at);
  return sizes;
}

std::vector<Rotation> rotations_of(const Part& part, int64_t head_dim = 0,
                                   const TokenPositions* at = nullptr) {
  std::vector<Rotation> rotations = BoundPart(part, sizes_of(head_dim, at), at).terms().rotations;
  for (const Rotation& rotation : rotations) check_pairs(rotation, part.scheme().name);
  return rotations;
}

// Key heads with frequencies of their own; 0: none.
int64_t heads_of(const std::vector<Rotation>& rotations) {
  int64_t heads = 0;
  for (const Rotation& rotation : rotations) {
    if (const auto* own = rotation.by<Rotation::ByHead>()) {
      heads = std::max(heads, own->frequency.view.shape[1]);
    }
  }
  return heads;
}

std::vector<Rotation> required_rotations(const Part& part, int64_t head_dim = 0,
                                         const TokenPositions* at = nullptr) {
  std::vector<Rotation> rotations = rotations_of(part, head_dim, at);
  check_value(!rotations.empty(), part.scheme().name, ": this position has no rotation");
  for (const Rotation& rotation : rotations) {
    check_value(rotation.by<Rotation::Tables>() == nullptr, part.scheme().name,
                ": turns by tables that are given with each call, and has none of its own");
  }
  if (heads_of(rotations) > 0) check_parameters(part, sizes_of(head_dim, at));
  return rotations;
}

int64_t total_dims(const std::vector<Rotation>& rotations) {
  int64_t dims = 0;
  for (const Rotation& rotation : rotations) dims += rotation.dims;
  return dims;
}

// The two columns of a pair in tables where those of its rotation begin at `start`.
std::array<int64_t, 2> columns_of_pair(const Rotation& rotation, int64_t pair, int64_t start) {
  const auto [first, second] = dims_of_pair(rotation, pair);
  return {start + first - rotation.start, start + second - rotation.start};
}

// Rows as queries of a call: at `positions`, else at tokens offset, offset + 1, ... Calls without one
// of them leave it out.
TokenPositions rows_at(const Part& part, int64_t length, int64_t offset,
                       const TensorView& positions) {
  TokenPositions at;
  at.queries = length;
  at.q = at.k = {offset};
  if (positions.given()) {
    at.consecutive = false;
    at.q.clear();
    for (int64_t l = 0; l < length; ++l) {
      at.q.push_back(positions.load_int(positions.offset({l})));
      check_position(at.q.back(), "positions");
    }
  } else if (part.recipe->place) {
    at.consecutive = false;
    at.q.clear();
    append_places({{part}}, Side::kQuery, offset, length, "offset", at.q);
  }
  return at;
}

// cos and sin of every pair of a rotation at one row, times the magnitude, rounded once to T.
template <typename T>
struct Turn {
  std::vector<T> cos, sin;

  void set(const Rotation& rotation, const TokenPositions& at, int64_t head, int64_t row) {
    cos.clear();
    sin.clear();
    for (int64_t p = 0; p < rotation.dims / 2; ++p) {
      const auto [c, s] = turn_of(at, rotation, p, true, 0, head, row);
      cos.push_back(static_cast<T>(c));
      sin.push_back(static_cast<T>(s));
    }
  }
};

// Offsets of all rows [..., l, :] for one l.
std::vector<int64_t> row_offsets(const TensorView& view) {
  std::vector<int64_t> offsets{0};
  for (int axis = 0; axis < view.rank - 2; ++axis) {
    std::vector<int64_t> next;
    for (int64_t offset : offsets) {
      for (int64_t n = 0; n < view.shape[static_cast<size_t>(axis)]; ++n) {
        next.push_back(offset + n * view.strides[static_cast<size_t>(axis)]);
      }
    }
    offsets = std::move(next);
  }
  return offsets;
}

// The key head whose frequencies turn row n of row_offsets().
int64_t head_of(const TensorView& x, int64_t heads, size_t n) {
  if (heads <= 1) return 0;
  const int64_t own = x.shape[static_cast<size_t>(x.rank - 3)];
  return static_cast<int64_t>(n) % own / (own / heads);
}

template <typename T>
void rotate_rows(const std::vector<Rotation>& rotations, const TensorView& x,
                 const TokenPositions& at, bool inverse, const TensorView& out) {
  const auto row_axis = static_cast<size_t>(x.rank - 2), dim_axis = static_cast<size_t>(x.rank - 1);
  const int64_t length = x.shape[row_axis], dims = x.shape[dim_axis];
  const int64_t from = x.strides[dim_axis], to = out.strides[dim_axis];
  const std::vector<int64_t> x_rows = row_offsets(x), out_rows = row_offsets(out);
  std::vector<bool> turned(static_cast<size_t>(dims), false);
  for (const Rotation& rotation : rotations) {
    std::fill_n(turned.begin() + rotation.start, rotation.dims, true);
  }
  std::vector<Turn<T>> turns(rotations.size());
  CancelTicks tick;
  const int64_t heads = heads_of(rotations);
  for (int64_t l = 0; l < length; ++l) {
    int64_t set_head = -1;
    for (size_t row = 0; row < x_rows.size(); ++row) {
      const int64_t head = head_of(x, heads, row);
      for (size_t r = 0; head != set_head && r < rotations.size(); ++r) {
        turns[r].set(rotations[r], at, head, l);
      }
      set_head = head;
      const int64_t source = x_rows[row] + l * x.strides[row_axis];
      const int64_t target = out_rows[row] + l * out.strides[row_axis];
      for (int64_t d = 0; d < dims; ++d) {
        tick();
        if (!turned[static_cast<size_t>(d)]) out.store(target + d * to, x.load(source + d * from));
      }
      for (size_t r = 0; r < rotations.size(); ++r) {
        for (int64_t p = 0; p < rotations[r].dims / 2; ++p) {
          const auto [first, second] = dims_of_pair(rotations[r], p);
          const T x1 = static_cast<T>(x.load(source + first * from));
          const T x2 = static_cast<T>(x.load(source + second * from));
          const T c = turns[r].cos[static_cast<size_t>(p)];
          const T s = inverse ? -turns[r].sin[static_cast<size_t>(p)]
                              : turns[r].sin[static_cast<size_t>(p)];
          out.store(target + first * to, static_cast<double>(x1 * c - x2 * s));
          out.store(target + second * to, static_cast<double>(x2 * c + x1 * s));
        }
      }
    }
  }
}

// Adds what the gradient of an angle gives to the frequencies of its pair.
void add_angle(const Rotation& rotation, int64_t head, int64_t row, int64_t pair, double of_angle,
               std::vector<double>& gradient) {
  const auto& own_frequencies = *rotation.by<Rotation::ByHead>();
  const TensorView& view = own_frequencies.frequency.view;
  const int64_t own = view.shape[1] == 1 ? 0 : head;
  for (int64_t axis = 0; axis < view.shape[0]; ++axis) {
    const auto by = static_cast<double>(own_frequencies.coordinates->query(axis, 0, row));
    gradient[static_cast<size_t>((axis * view.shape[1] + own) * view.shape[2] + pair)] +=
        by * of_angle * own_frequencies.frequency.multiplier;
  }
}

// Calls fill(rotation, at, gradient) for each rotation with trained frequencies, then writes the
// parameters' gradients.
template <typename F>
void pull_back_turns(const Part& part, const TokenPositions& at, int64_t head_dim,
                     const std::vector<TensorView>& dparameters, F&& fill) {
  check_value(dparameters.size() == part.parameters.size(), "dparameters: expected ",
              part.parameters.size(), " views, got ", dparameters.size());
  std::vector<bool> wants;
  for (const TensorView& view : dparameters) wants.push_back(view.given());
  const BoundPart bound(part, sizes_of(head_dim, &at), wants, &at);
  TermGradients gradients = TermGradients::zeros(bound.terms());
  int64_t start = 0;  // in the tables
  for (size_t n = 0; n < bound.terms().rotations.size(); ++n) {
    const Rotation& rotation = bound.terms().rotations[n];
    std::vector<double>& own = gradients.rotations[n].head_frequency;
    if (!own.empty()) fill(rotation, start, own);
    start += rotation.dims;
  }
  ParameterSums sums = zero_sums(part, wants);
  bound.pull_back(gradients, sums);
  for (size_t p = 0; p < wants.size(); ++p) {
    if (!wants[p]) continue;
    check_output(dparameters[p], part.parameters[p].dims(), part.parameters[p].dtype,
                 "dparameters");
    write_values(sums[p], dparameters[p]);
  }
}

std::vector<int64_t> tables_shape(const std::vector<Rotation>& rotations, int64_t length) {
  const int64_t heads = heads_of(rotations);
  if (heads == 0) return {length, total_dims(rotations)};
  return {heads, length, total_dims(rotations)};
}

int64_t table_offset(const TensorView& view, int64_t head, int64_t l, int64_t d) {
  return view.rank == 3 ? view.offset({head, l, d}) : view.offset({l, d});
}

void check_length(int64_t length, int64_t offset) {
  check_value(length >= 0 && length < kPositionLimit, "length: expected 0 or more, got ", length);
  check_position(offset, "offset");
}

// The rotations that turn x, whose rows stand at `at`, which is set.
std::vector<Rotation> rotations_for(const Part& part, const TensorView& x, int64_t offset,
                                    const TensorView& positions, TokenPositions& at) {
  check_value(x.given() && x.rank >= 2 && x.rank <= 4,
              "x: expected [..., L, D] of rank 2 to 4, got ", Shape{x});
  if (!is_floating(x.dtype)) {
    throw_error(ErrorKind::kType, "x: expected a floating dtype, got ", dtype_name(x.dtype));
  }
  const int64_t length = x.shape[static_cast<size_t>(x.rank - 2)];
  const int64_t dims = x.shape[static_cast<size_t>(x.rank - 1)];
  const std::vector<Rotation> rotations = required_rotations(part, dims);
  for (const Rotation& rotation : rotations) {
    check_value(rotation.start <= dims && rotation.dims <= dims - rotation.start, "x: expected a ",
                "last axis of at least ", rotation.start + rotation.dims, " for ",
                part.scheme().name, ", got ", Shape{x});
    check_value(!rotation.decays(), part.scheme().name,
                ": decays with the distance, so that no rotation of one side stands for it");
  }
  const int64_t heads = heads_of(rotations);
  check_value(heads <= 1 || (x.rank > 2 && x.shape[static_cast<size_t>(x.rank - 3)] % heads == 0),
              "x: expected [..., H, L, D], H a multiple of the ", heads, " heads of ",
              part.scheme().name, ", got ", Shape{x});
  if (positions.given()) {
    check_input(positions, {length}, "positions");
    if (positions.dtype != DType::kInt64) {
      throw_error(ErrorKind::kType, "positions: expected int64, got ", dtype_name(positions.dtype));
    }
  } else {
    check_position(offset, "offset");
  }
  at = rows_at(part, length, offset, positions);
  return required_rotations(part, dims, &at);
}

}  // namespace

int64_t rotary_dims(const Part& part) { return total_dims(rotations_of(part)); }
int64_t rotary_heads(const Part& part) { return heads_of(rotations_of(part)); }

void rotary_tables(const Part& part, int64_t length, int64_t offset, const TensorView& cos,
                   const TensorView& sin, CancelToken* cancel) {
  const CallScope scope(cancel);
  check_length(length, offset);
  const std::vector<int64_t> shape = tables_shape(required_rotations(part), length);
  for (const auto& [view, name] : {std::pair{&cos, "cos"}, std::pair{&sin, "sin"}}) {
    check_output(*view, shape, view->dtype, name);
    if (view->dtype != DType::kFloat32 && view->dtype != DType::kFloat64) {
      throw_error(ErrorKind::kType, name, ": expected float32 or float64, got ",
                  dtype_name(view->dtype));
    }
  }
  const TokenPositions at = rows_at(part, length, offset, {});
  const std::vector<Rotation> rotations = required_rotations(part, 0, &at);
  const int64_t heads = std::max<int64_t>(heads_of(rotations), 1);
  Turn<double> turn;
  CancelTicks tick;
  for (int64_t row = 0; row < heads * length; ++row) {
    const int64_t head = row / length, l = row % length;
    int64_t start = 0;
    for (const Rotation& rotation : rotations) {
      turn.set(rotation, at, head, l);
      for (int64_t p = 0; p < rotation.dims / 2; ++p) {
        tick();
        for (int64_t d : columns_of_pair(rotation, p, start)) {
          cos.store(table_offset(cos, head, l, d), turn.cos[static_cast<size_t>(p)]);
          sin.store(table_offset(sin, head, l, d), turn.sin[static_cast<size_t>(p)]);
        }
      }
      start += rotation.dims;
    }
  }
}

void rotary_tables_backward(const Part& part, int64_t offset, const TensorView& dcos,
                            const TensorView& dsin, const std::vector<TensorView>& dparameters,
                            CancelToken* cancel) {
  const CallScope scope(cancel);
  check_value(dcos.given() && dcos.rank >= 2, "dcos: expected a table, got ", Shape{dcos});
  const int64_t length = dcos.shape[static_cast<size_t>(dcos.rank - 2)];
  check_length(length, offset);
  const std::vector<Rotation> rotations = required_rotations(part);
  check_input(dcos, tables_shape(rotations, length), "dcos");
  check_input(dsin, tables_shape(rotations, length), "dsin");
  const int64_t heads = heads_of(rotations);
  const TokenPositions at = rows_at(part, length, offset, {});
  CancelTicks tick;
  pull_back_turns(part, at, 0, dparameters,
                  [&](const Rotation& rotation, int64_t start, std::vector<double>& gradient) {
                    Turn<double> turn;
                    for (int64_t row = 0; row < heads * length; ++row) {
                      const int64_t head = row / length, l = row % length;
                      turn.set(rotation, at, head, l);
                      for (int64_t p = 0; p < rotation.dims / 2; ++p) {
                        tick();
                        double of_angle = 0.0;
                        for (int64_t d : columns_of_pair(rotation, p, start)) {
                          const int64_t from = table_offset(dcos, head, l, d);
                          of_angle += dsin.load(table_offset(dsin, head, l, d)) *
                                          turn.cos[static_cast<size_t>(p)] -
                                      dcos.load(from) * turn.sin[static_cast<size_t>(p)];
                        }
                        add_angle(rotation, head, l, p, of_angle, gradient);
                      }
                    }
                  });
}

void rotate(const Part& part, const TensorView& x, int64_t offset, const TensorView& positions,
            bool inverse, const TensorView& out, CancelToken* cancel) {
  const CallScope scope(cancel);
  TokenPositions at;
  const std::vector<Rotation> rotations = rotations_for(part, x, offset, positions, at);
  check_output(out, x.dims(), x.dtype, "out");
  if (x.numel() == 0) return;
  if (x.dtype == DType::kFloat64) {
    rotate_rows<double>(rotations, x, at, inverse, out);
  } else {
    rotate_rows<float>(rotations, x, at, inverse, out);
  }
}

void rotate_backward(const Part& part, const TensorView& x, int64_t offset,
                     const TensorView& positions, bool inverse, const TensorView& dout,
                     const std::vector<TensorView>& dparameters, CancelToken* cancel) {
  const CallScope scope(cancel);
  TokenPositions at;
  const int64_t heads = heads_of(rotations_for(part, x, offset, positions, at));
  check_input(dout, x.dims(), "dout");
  const auto row_axis = static_cast<size_t>(x.rank - 2), dim_axis = static_cast<size_t>(x.rank - 1);
  const std::vector<int64_t> x_rows = row_offsets(x), dout_rows = row_offsets(dout);
  const double direction = inverse ? -1.0 : 1.0;
  CancelTicks tick;
  const auto fill = [&](const Rotation& rotation, int64_t, std::vector<double>& gradient) {
    Turn<double> turn;
    for (int64_t l = 0; l < x.shape[row_axis]; ++l) {
      for (size_t row = 0; row < x_rows.size(); ++row) {
        const int64_t head = head_of(x, heads, row);
        turn.set(rotation, at, head, l);
        const int64_t from = x_rows[row] + l * x.strides[row_axis];
        const int64_t of = dout_rows[row] + l * dout.strides[row_axis];
        for (int64_t p = 0; p < rotation.dims / 2; ++p) {
          tick();
          const auto [first, second] = dims_of_pair(rotation, p);
          const double x1 = x.load(from + first * x.strides[dim_axis]);
          const double x2 = x.load(from + second * x.strides[dim_axis]);
          const double d1 = dout.load(of + first * dout.strides[dim_axis]);
          const double d2 = dout.load(of + second * dout.strides[dim_axis]);
          const double c = turn.cos[static_cast<size_t>(p)];
          const double s = direction * turn.sin[static_cast<size_t>(p)];
          const double of_angle = d2 * (x1 * c - x2 * s) - d1 * (x2 * c + x1 * s);
          add_angle(rotation, head, l, p, direction * of_angle, gradient);
        }
      }
    }
  };
  pull_back_turns(part, at, x.shape[dim_axis], dparameters, fill);
}

}  // namespace relpos
