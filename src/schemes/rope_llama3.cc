// Llama 3.1: RoPE whose slow pairs turn `factor` times slower, so that more positions fit.
//
//   wavelength = 2 pi / w;   high = original / high_freq_factor;   low = original / low_freq_factor
//   w' = w  where wavelength < high,   w / factor  where wavelength > low,
//        (1 - s) w / factor + s w  between, s = (original / wavelength - low_freq_factor)
//                                             / (high_freq_factor - low_freq_factor)
#include <numbers>

#include "schemes/common/rotary.h"

namespace relpos {

namespace {

struct Llama3RoPE {
  common::Rotary rotary{.base = 500000.0};
  double factor = 8.0, low_freq_factor = 1.0, high_freq_factor = 4.0;
  int64_t original_max_position_embeddings = 8192;

  void options(OptionList& o) {
    rotary.options(o);
    o.number("factor", factor, "slow pairs turn so many times slower");
    o.number("low_freq_factor", low_freq_factor,
             "slow: fewer turns than this in the original context");
    o.number("high_freq_factor", high_freq_factor,
             "fast, left as they are: more turns than this in the original context");
    o.size("original_max_position_embeddings", original_max_position_embeddings,
           "the original context, in positions");
  }

  void terms(Builder& b) const {
    b.require(factor > 0, "factor: expected a number above 0, got ", factor);
    b.require(low_freq_factor > 0 && high_freq_factor > low_freq_factor,
              "high_freq_factor: expected more than low_freq_factor=", low_freq_factor,
              ", which is above 0, got ", high_freq_factor);
    // In the order in which PyTorch computes it: a number over x is the number times 1 / x.
    const Rotation turn = rotary.rescaled(b, [this](auto w, size_t) {
      using Real = decltype(w);
      const auto original = static_cast<Real>(original_max_position_embeddings);
      const auto low = static_cast<Real>(low_freq_factor),
                 high = static_cast<Real>(high_freq_factor);
      const Real wave = 1 / w * static_cast<Real>(2.0 * std::numbers::pi);
      if (wave < original / high) return w;
      if (wave > original / low) return w / static_cast<Real>(factor);
      const Real s = (1 / wave * original - low) / (high - low);
      return (1 - s) * w / static_cast<Real>(factor) + s * w;
    });
    b.rotation(turn);
  }
};

}  // namespace

RELPOS_SCHEME(rope_llama3, Llama3RoPE, "Llama3RoPE",
              "RoPE for longer contexts: slow pairs turn slower, fast ones as before",
              "Llama Team 2024, The Llama 3 Herd of Models; Hugging Face rope_type llama3")

}  // namespace relpos
