// What the rotations share: their options, and pairs that turn by frequencies.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "relpos/scheme.h"

namespace relpos::common {

struct Rotary {
  int64_t head_dim = 0;
  std::string layout{}, angle = "double";
  double base = 10000.0;
  std::optional<int64_t> rotary_dim{};

  void options(OptionList& o);
  // Pairs that turn by base^(-2 p / rotary_dim) a position, as a rotation that is not yet a term.
  Rotation rotation(const Builder& b) const;

  // Pair p turns by rescaled(base^(-2 p / rotary_dim)); with float32 angles all of it in float32.
  template <typename F>
  void rescaled_terms(Builder& b, F rescaled) const {
    Rotation turn = rotation(b);
    for (double& frequency : turn.frequency) {
      frequency = turn.float32_angles ? static_cast<double>(rescaled(static_cast<float>(frequency)))
                                      : rescaled(frequency);
    }
    b.rotation(std::move(turn));
  }
};

}  // namespace relpos::common
