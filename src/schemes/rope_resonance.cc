// Wang et al. 2024 (Resonance RoPE): wavelengths rounded to whole tokens, so that positions beyond
// the training length meet angles that training has seen.
//
//   pair p turns by pos * 2 pi / round(2 pi / w),   w = base^(-2 p / rotary_dim)
#include <cmath>
#include <numbers>

#include "schemes/common/rotary.h"

namespace relpos {

namespace {

struct ResonanceRoPE {
  common::Rotary rotary;

  void options(OptionList& o) { rotary.options(o); }

  void terms(Builder& b) const {
    b.rotation(rotary.rescaled(b, [](auto w, size_t) {
      const auto turn = static_cast<decltype(w)>(2.0 * std::numbers::pi);
      return turn / std::round(turn / w);
    }));
  }
};

}  // namespace

RELPOS_SCHEME(rope_resonance, ResonanceRoPE, "ResonanceRoPE",
              "RoPE with wavelengths of whole tokens",
              "Wang et al. 2024, Resonance RoPE, section 4.1")

}  // namespace relpos
