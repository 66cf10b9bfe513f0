// Rotations of one part outside an attention call.
#include <algorithm>
#include <utility>

#include "base/angles.h"
#include "base/parallel.h"
#include "bound_part.h"
#include "coordinates.h"
#include "parts.h"
#include "relpos/dense.h"
#include "relpos/error.h"
#include "views.h"

namespace relpos {
namespace {

std::vector<Rotation> rotations_of(const Part& part, int64_t head_dim = 0,
                                   const Positions* at = nullptr) {
  CallSizes sizes;
  sizes.head_dim = head_dim;
  if (at != nullptr) sizes.length = length_of(*at);
  std::vector<Rotation> rotations = BoundPart(part, sizes, at).terms().rotations;
  for (const Rotation& rotation : rotations) {
    check_value(rotation.start >= 0 && rotation.dims >= 0 && rotation.dims % 2 == 0 &&
                    (rotation.head_frequency.view.given() ||
                     std::ssize(rotation.frequency) == rotation.dims / 2),
                part.scheme().name, ": expected one frequency for each pair of ", rotation.dims,
                " dims, got ", rotation.frequency.size());
  }
  return rotations;
}

std::vector<Rotation> required_rotations(const Part& part, int64_t head_dim = 0,
                                         const Positions* at = nullptr) {
  std::vector<Rotation> rotations = rotations_of(part, head_dim, at);
  check_value(!rotations.empty(), part.scheme().name, ": this position has no rotation");
  for (const Rotation& rotation : rotations) {
    check_value(!rotation.head_frequency.view.given(), part.scheme().name,
                ": each head turns by its own trained frequencies, so that no one table of cosines "
                "and sines stands for it; give the position to attention or scores");
  }
  return rotations;
}

int64_t total_dims(const std::vector<Rotation>& rotations) {
  int64_t dims = 0;
  for (const Rotation& rotation : rotations) dims += rotation.dims;
  return dims;
}

// The two dims of a pair, within the slice.
std::pair<int64_t, int64_t> pair_dims(const Rotation& rotation, int64_t pair) {
  if (rotation.layout == PairLayout::kHalf) return {pair, pair + rotation.dims / 2};
  return {2 * pair, 2 * pair + 1};
}

// Rows as queries of a call: at `positions`, else at tokens offset, offset + 1, ... Calls without one
// of them leave it out.
Positions rows_at(const Part& part, int64_t length, int64_t offset, const TensorView& positions) {
  Positions at;
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
  std::vector<double> wide_cos, wide_sin;
  std::vector<T> cos, sin;

  void set(const Rotation& rotation, const Positions& at, int64_t row) {
    const size_t pairs = rotation.frequency.size();
    wide_cos.resize(pairs);
    wide_sin.resize(pairs);
    cos.resize(pairs);
    sin.resize(pairs);
    for (size_t p = 0; p < pairs; ++p) {
      const int64_t by = turns_by(at, rotation, static_cast<int64_t>(p), true, 0, row);
      const double angle = rotation_angle(rotation, by, p);
      wide_cos[p] = std::cos(angle);
      wide_sin[p] = std::sin(angle);
    }
    for (size_t p = 0; p < pairs; ++p) {
      cos[p] = static_cast<T>(rotation.magnitude * wide_cos[p]);
      sin[p] = static_cast<T>(rotation.magnitude * wide_sin[p]);
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

template <typename T>
void rotate_rows(const std::vector<Rotation>& rotations, const TensorView& x, const Positions& at,
                 bool inverse, const TensorView& out) {
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
  for (int64_t l = 0; l < length; ++l) {
    for (size_t r = 0; r < rotations.size(); ++r) turns[r].set(rotations[r], at, l);
    for (size_t row = 0; row < x_rows.size(); ++row) {
      const int64_t source = x_rows[row] + l * x.strides[row_axis];
      const int64_t target = out_rows[row] + l * out.strides[row_axis];
      for (int64_t d = 0; d < dims; ++d) {
        tick();
        if (!turned[static_cast<size_t>(d)]) out.store(target + d * to, x.load(source + d * from));
      }
      for (size_t r = 0; r < rotations.size(); ++r) {
        for (int64_t p = 0; p < rotations[r].dims / 2; ++p) {
          const auto [a, b] = pair_dims(rotations[r], p);
          const int64_t first = rotations[r].start + a, second = rotations[r].start + b;
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

}  // namespace

int64_t rotary_dims(const Part& part) { return total_dims(rotations_of(part)); }

void rotary_tables(const Part& part, int64_t length, int64_t offset, const TensorView& cos,
                   const TensorView& sin, CancelToken* cancel) {
  const CallScope scope(cancel);
  std::vector<Rotation> rotations = required_rotations(part);
  check_value(length >= 0 && length < kPositionLimit, "length: expected 0 or more, got ", length);
  check_position(offset, "offset");
  const std::vector<int64_t> shape{length, total_dims(rotations)};
  for (const auto& [view, name] : {std::pair{&cos, "cos"}, std::pair{&sin, "sin"}}) {
    check_output(*view, shape, view->dtype, name);
    if (view->dtype != DType::kFloat32 && view->dtype != DType::kFloat64) {
      throw_error(ErrorKind::kType, name, ": expected float32 or float64, got ",
                  dtype_name(view->dtype));
    }
  }
  const Positions at = rows_at(part, length, offset, {});
  rotations = required_rotations(part, 0, &at);
  Turn<double> turn;
  CancelTicks tick;
  for (int64_t l = 0; l < length; ++l) {
    int64_t start = 0;
    for (const Rotation& rotation : rotations) {
      turn.set(rotation, at, l);
      for (int64_t p = 0; p < rotation.dims / 2; ++p) {
        tick();
        const auto [a, b] = pair_dims(rotation, p);
        for (int64_t d : {start + a, start + b}) {
          cos.store(cos.offset({l, d}), turn.cos[static_cast<size_t>(p)]);
          sin.store(sin.offset({l, d}), turn.sin[static_cast<size_t>(p)]);
        }
      }
      start += rotation.dims;
    }
  }
}

void rotate(const Part& part, const TensorView& x, int64_t offset, const TensorView& positions,
            bool inverse, const TensorView& out, CancelToken* cancel) {
  const CallScope scope(cancel);
  check_value(x.given() && x.rank >= 2 && x.rank <= 4,
              "x: expected [..., L, D] of rank 2 to 4, got ", Shape{x});
  if (!is_floating(x.dtype)) {
    throw_error(ErrorKind::kType, "x: expected a floating dtype, got ", dtype_name(x.dtype));
  }
  check_output(out, x.dims(), x.dtype, "out");
  const int64_t length = x.shape[static_cast<size_t>(x.rank - 2)];
  const int64_t dims = x.shape[static_cast<size_t>(x.rank - 1)];
  std::vector<Rotation> rotations = required_rotations(part, dims);
  for (const Rotation& rotation : rotations) {
    check_value(rotation.start <= dims && rotation.dims <= dims - rotation.start, "x: expected a ",
                "last axis of at least ", rotation.start + rotation.dims, " for ",
                part.scheme().name, ", got ", Shape{x});
    check_value(rotation.log_decay.empty(), part.scheme().name,
                ": decays with the distance, so that no rotation of one side stands for it");
  }
  if (positions.given()) {
    check_input(positions, {length}, "positions");
    if (positions.dtype != DType::kInt64) {
      throw_error(ErrorKind::kType, "positions: expected int64, got ", dtype_name(positions.dtype));
    }
  } else {
    check_position(offset, "offset");
  }
  const Positions at = rows_at(part, length, offset, positions);
  if (x.numel() == 0) return;
  rotations = required_rotations(part, dims, &at);
  if (x.dtype == DType::kFloat64) {
    rotate_rows<double>(rotations, x, at, inverse, out);
  } else {
    rotate_rows<float>(rotations, x, at, inverse, out);
  }
}

}  // namespace relpos
