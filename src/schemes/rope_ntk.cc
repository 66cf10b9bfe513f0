// bloc97 2023 (NTK-aware scaling): RoPE with a larger base, so that slow pairs turn `factor` times
// slower and fast ones hardly change.
//
//   pair p turns by pos * (base factor^(d / (d - 2)))^(-2 p / d),   d = rotary_dim
#include "schemes/common/ntk.h"

namespace relpos {

namespace {

struct NTKRoPE {
  common::Rotary rotary;
  double factor = 1.0;

  void options(OptionList& o) {
    rotary.options(o);
    o.number("factor", factor, "the slowest pair turns so many times slower");
  }

  void terms(Builder& b) const {
    b.require(factor > 0, "factor: expected a number above 0, got ", factor);
    Rotation turn = rotary.rotation(b);
    turn.by_position().frequency =
        rotary.frequencies(turn.dims, common::ntk_base(rotary.base, factor, turn.dims));
    b.rotation(turn);
  }
};

}  // namespace

RELPOS_SCHEME(rope_ntk, NTKRoPE, "NTKRoPE",
              "RoPE for longer contexts: a larger base, so that slow pairs turn slower",
              "bloc97 2023, NTK-Aware Scaled RoPE")

}  // namespace relpos
