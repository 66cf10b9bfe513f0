// Proportional RoPE (Gemma 4, LFM3): exponents over the whole head, and only the first pairs turn.
//
//   pair p < floor(partial_rotary_factor rotary_dim / 2) turns by
//   pos * base^(-2 p / rotary_dim) / factor, the others stay
//
// Pairs are those of the whole slice; `rotary_dim` of other rotations turns a slice of its own.
#include "schemes/common/rotary.h"

namespace relpos {

namespace {

struct ProportionalRoPE {
  common::Rotary rotary;
  double partial_rotary_factor = 1.0, factor = 1.0;

  void options(OptionList& o) {
    rotary.options(o);
    o.number("partial_rotary_factor", partial_rotary_factor, "share of the pairs that turn");
    o.number("factor", factor, "they turn so many times slower");
  }

  void terms(Builder& b) const {
    b.require(partial_rotary_factor >= 0 && partial_rotary_factor <= 1,
              "partial_rotary_factor: expected 0 to 1, got ", partial_rotary_factor);
    b.require(factor > 0, "factor: expected a number above 0, got ", factor);
    const int64_t dims = rotary.rotation(b).dims;
    const auto turning = static_cast<size_t>(partial_rotary_factor * static_cast<double>(dims)) / 2;
    b.rotation(rotary.rescaled(b, [=, this](auto w, size_t pair) {
      using Real = decltype(w);
      return pair < turning ? w / static_cast<Real>(factor) : Real{0};
    }));
  }
};

}  // namespace

RELPOS_SCHEME(rope_proportional, ProportionalRoPE, "ProportionalRoPE",
              "RoPE of which only the fast pairs turn",
              "Gemma Team 2026, Gemma 4; Hugging Face rope_type proportional")

}  // namespace relpos
