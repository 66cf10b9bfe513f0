// What the rotations share: their options, and pairs that turn by frequencies.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "relpos/scheme.h"

namespace relpos::common {

struct Rotary {
  int64_t head_dim = 0;
  std::string layout, angle = "double";
  double base = 10000.0;
  std::optional<int64_t> rotary_dim;

  void options(OptionList& o);
  // Pair p turns by rescaled(base^(-2 p / rotary_dim)) a position; float32 angles round each
  // frequency to float32.
  void terms(Builder& b, const std::function<double(double frequency)>& rescaled = {}) const;
};

}  // namespace relpos::common
