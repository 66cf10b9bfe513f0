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

// frequency[axis, h, n] of a rotation by heads, multiplied.
inline double frequency_of(const Rotation::ByHead& own, int64_t axis, int64_t h, int64_t n) {
  const TensorView& view = own.frequency.view;
  return own.frequency.multiplier * view.at({axis, view.shape[1] == 1 ? 0 : h, n});
}

// The angle by which pair n of key head h turns query or key i, and the queries of its group, of a
// rotation without tables.
inline double angle_of(const TokenPositions& at, const Rotation& rotation, int64_t n, bool query,
                       int64_t b, int64_t h, int64_t i) noexcept {
  if (const auto* position = rotation.by<Rotation::ByPosition>()) {
    return rotation_angle(*position, query ? at.query(b, i) : at.key(b, i), n);
  }
  if (const auto* axes = rotation.by<Rotation::ByCoordinates>()) {
    return rotation_angle(*axes, axes->coordinates->of(query, axes->axis[n], b, i), n);
  }
  const auto& heads = *rotation.by<Rotation::ByHead>();
  double angle = 0.0;
  for (int64_t axis = 0; axis < heads.frequency.view.shape[0]; ++axis) {
    angle += static_cast<double>(heads.coordinates->of(query, axis, b, i)) *
             frequency_of(heads, axis, h, n);
  }
  return angle;
}

// Cosine and sine, times the magnitude, by which pair n of key head h turns query or key i.
inline std::pair<double, double> turn_of(const TokenPositions& at, const Rotation& rotation,
                                         int64_t n, bool query, int64_t b, int64_t h,
                                         int64_t i) noexcept {
  double c = 0.0, s = 0.0;
  if (const auto* tables = rotation.by<Rotation::Tables>()) {
    const TermData& cosines = query ? tables->q_cos : tables->k_cos;
    const TermData& sines = query ? tables->q_sin : tables->k_sin;
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
