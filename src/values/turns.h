// By what a rotation turns the pairs of a head's dimensions at a token.
#pragma once

#include <cmath>
#include <cstdint>
#include <utility>

#include "relpos/terms.h"
#include "values/angles.h"
#include "values/token_positions.h"

namespace relpos {

// The dims of a head that pair n of a rotation is.
inline std::pair<int64_t, int64_t> dims_of_pair(const Rotation& rotation, int64_t n) noexcept {
  if (rotation.layout == PairLayout::kInterleaved) {
    return {rotation.start + 2 * n, rotation.start + 2 * n + 1};
  }
  return {rotation.start + n, rotation.start + n + rotation.dims / 2};
}

// What pair n of a rotation turns by: the position of query or key i, or a coordinate of it.
inline int64_t turns_by(const TokenPositions& at, const Rotation& rotation, int64_t n, bool query,
                        int64_t b, int64_t i) noexcept {
  if (rotation.axis.empty()) return query ? at.query(b, i) : at.key(b, i);
  return rotation.coordinates->of(query, rotation.axis[n], b, i);
}

// head_frequency[axis, h, n] of a rotation, multiplied.
inline double frequency_of(const TermData& head_frequency, int64_t axis, int64_t h, int64_t n) {
  const TensorView& view = head_frequency.view;
  return head_frequency.multiplier * view.at({axis, view.shape[1] == 1 ? 0 : h, n});
}

// The angle by which pair n of key head h turns query or key i, and the queries of its group.
inline double angle_of(const TokenPositions& at, const Rotation& rotation, int64_t n, bool query,
                       int64_t b, int64_t h, int64_t i) noexcept {
  const TermData& own = rotation.head_frequency;
  if (!own.view.given()) {
    return rotation_angle(rotation, turns_by(at, rotation, n, query, b, i), n);
  }
  double angle = 0.0;
  for (int64_t axis = 0; axis < own.view.shape[0]; ++axis) {
    angle += static_cast<double>(rotation.coordinates->of(query, axis, b, i)) *
             frequency_of(own, axis, h, n);
  }
  return angle;
}

// Cosine and sine, times the magnitude, by which pair n of key head h turns query or key i.
inline std::pair<double, double> turn_of(const TokenPositions& at, const Rotation& rotation,
                                         int64_t n, bool query, int64_t b, int64_t h,
                                         int64_t i) noexcept {
  double c = 0.0, s = 0.0;
  if (rotation.tables.q_cos.view.given()) {
    const TermData& cosines = query ? rotation.tables.q_cos : rotation.tables.k_cos;
    const TermData& sines = query ? rotation.tables.q_sin : rotation.tables.k_sin;
    c = cosines.multiplier * cosines.view.at({b, h, i, n});
    s = sines.multiplier * sines.view.at({b, h, i, n});
  } else {
    const double angle = angle_of(at, rotation, n, query, b, h, i);
    c = std::cos(angle);
    s = std::sin(angle);
  }
  return {rotation.magnitude * c, rotation.magnitude * s};
}

}  // namespace relpos
