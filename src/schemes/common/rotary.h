// What the rotations share: their options, and pairs that turn by frequencies.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "relpos/scheme.h"

namespace relpos::common {

struct Rotary {
  int64_t head_dim = 0, start = 0;
  std::string layout{}, angle = "double";
  double base = 10000.0;
  std::optional<int64_t> rotary_dim{};

  void options(OptionList& o);
  // Pairs that turn by base^(-2 p / rotary_dim) a position, as a rotation that is not yet a term.
  Rotation rotation(const Builder& b) const;

  // base^(-2 p / dims) of each pair, in the precision of the angles.
  std::vector<double> frequencies(int64_t dims, double base) const;

  // Pair p turns by of(frequency, p); with float32 angles all of it in float32.
  template <typename F>
  void rescale(std::vector<double>& frequency, F of) const {
    for (size_t p = 0; p < frequency.size(); ++p) {
      double& w = frequency[p];
      w = angle == "float32" ? static_cast<double>(of(static_cast<float>(w), p)) : of(w, p);
    }
  }
  template <typename F>
  Rotation rescaled(const Builder& b, F of) const {
    Rotation turn = rotation(b);
    rescale(turn.by_position().frequency, of);
    return turn;
  }
};

// Pairs that turn by each of three axes, as the option `section` gives them; else `otherwise`, which has
// as many in all.
std::vector<int64_t> sections(const Builder& b, const std::optional<std::vector<double>>& section,
                              const std::vector<int64_t>& otherwise);

}  // namespace relpos::common
