// Peng et al. 2023 (YaRN): slow pairs turn `factor` times slower, fast ones as before, those between
// by a ramp over the pairs; cosines and sines are multiplied by A.
//
//   w'_p = ramp_p w_p / factor + (1 - ramp_p) w_p,   ramp_p = clamp((p - low) / (high - low), 0, 1)
//   corr(r) = d ln(original / (2 pi r)) / (2 ln base),   d = rotary_dim,   m(k) = 1 + 0.1 k ln factor
//   low = max(floor corr(beta_fast), 0),   high = min(ceil corr(beta_slow), d - 1)
//   A = attention_factor, else m(mscale) / m(mscale_all_dim) where both are given, else m(1)
//
// A model that multiplies the scale of all dims, as DeepSeek does by m(mscale_all_dim)^2, says so in
// `scale` of the call.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "schemes/common/rotary.h"

namespace relpos {

namespace {

struct YaRN {
  common::Rotary rotary;
  double factor = 1.0, beta_fast = 32.0, beta_slow = 1.0;
  int64_t original_max_position_embeddings = 4096;
  std::optional<double> mscale, mscale_all_dim, attention_factor;
  bool truncate = true;

  void options(OptionList& o) {
    rotary.options(o);
    o.number("factor", factor, "slow pairs turn so many times slower");
    o.size("original_max_position_embeddings", original_max_position_embeddings,
           "the original context, in positions");
    o.number("beta_fast", beta_fast, "fast: more turns than this in the original context");
    o.number("beta_slow", beta_slow, "slow: fewer turns than this in the original context");
    o.number("mscale", mscale, "of A, beside mscale_all_dim");
    o.number("mscale_all_dim", mscale_all_dim, "of A, beside mscale");
    o.number("attention_factor", attention_factor, "A itself; None: by the formula");
    o.flag("truncate", truncate, "round the ends of the ramp to whole pairs, outwards");
  }

  double corr(double turns, double dims) const {
    const auto original = static_cast<double>(original_max_position_embeddings);
    return dims * std::log(original / (turns * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(rotary.base));
  }
  double m(double k) const { return factor <= 1 ? 1.0 : 1.0 + 0.1 * k * std::log(factor); }
  double magnitude() const {
    if (attention_factor) return *attention_factor;
    const bool both = mscale.value_or(0) != 0 && mscale_all_dim.value_or(0) != 0;
    return both ? m(*mscale) / m(*mscale_all_dim) : m(1.0);
  }

  void terms(Builder& b) const {
    b.require(factor > 0, "factor: expected a number above 0, got ", factor);
    b.require(beta_slow > 0 && beta_fast >= beta_slow,
              "beta_fast: expected at least beta_slow=", beta_slow, ", which is above 0, got ",
              beta_fast);
    b.require(rotary.base > 0 && rotary.base != 1, "base: expected a number above 0 other than 1, ",
              "got ", rotary.base);
    const auto dims = static_cast<double>(rotary.rotation(b).dims);
    double low = corr(beta_fast, dims), high = corr(beta_slow, dims);
    if (truncate) low = std::floor(low), high = std::ceil(high);
    low = std::max(low, 0.0);
    high = std::min(high, dims - 1.0);
    if (low == high) high += 0.001;
    Rotation turn = rotary.rescaled(b, [=, this](auto w, size_t pair) {
      using Real = decltype(w);
      const Real ramp = std::clamp(
          (static_cast<Real>(pair) - static_cast<Real>(low)) / static_cast<Real>(high - low),
          Real{0}, Real{1});
      return w / static_cast<Real>(factor) * ramp + w * (1 - ramp);
    });
    turn.magnitude = magnitude();
    b.rotation(turn);
  }
};

}  // namespace

RELPOS_SCHEME(rope_yarn, YaRN, "YaRN",
              "RoPE for longer contexts: slow pairs turn slower, by a ramp, and scores grow",
              "Peng, Quesnelle, Fan, Shippole 2023, YaRN; Hugging Face rope_type yarn")

}  // namespace relpos
