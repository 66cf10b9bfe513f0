// Chen et al. 2023 (position interpolation): RoPE whose pairs turn `factor` times slower.
//
//   pair p turns by pos * base^(-2 p / rotary_dim) / factor
#include "schemes/common/rotary.h"

namespace relpos {

namespace {

struct LinearRoPE {
  common::Rotary rotary;
  double factor = 1.0;

  void options(OptionList& o) {
    rotary.options(o);
    o.number("factor", factor, "all pairs turn so many times slower");
  }

  void terms(Builder& b) const {
    b.require(factor > 0, "factor: expected a number above 0, got ", factor);
    b.rotation(rotary.rescaled(
        b, [this](auto w, size_t) { return w / static_cast<decltype(w)>(factor); }));
  }
};

}  // namespace

RELPOS_SCHEME(rope_linear, LinearRoPE, "LinearRoPE",
              "RoPE for longer contexts: all pairs turn slower",
              "Chen et al. 2023, Extending Context Window of Large Language Models via Positional "
              "Interpolation; Hugging Face rope_type linear")

}  // namespace relpos
