// Ding et al. 2024 (LongRoPE): each pair turns slower by a factor of its own, of one list for short
// calls and another for long ones; cosines and sines are multiplied by A.
//
//   pair p turns by pos * base^(-2 p / rotary_dim) / s_p,   s = long_factor where L > original, else
//   short_factor,   L = the last position of the call + 1, or `length`
//   A = attention_factor, else sqrt(1 + ln factor / ln original), 1 where factor is at most 1
//
// All batch rows of a call turn alike. Keys turn in the call that reads them, so that a cache of keys
// stays right when L passes the original context.
#include <cmath>

#include "schemes/common/rotary.h"

namespace relpos {

namespace {

struct LongRoPE {
  common::Rotary rotary;
  std::optional<std::vector<double>> short_factor, long_factor;
  double factor = 1.0;
  int64_t original_max_position_embeddings = 4096;
  std::optional<double> attention_factor;
  std::optional<int64_t> length;

  void options(OptionList& o) {
    rotary.options(o);
    o.values("short_factor", short_factor, "of each pair in short calls; None: 1");
    o.values("long_factor", long_factor, "of each pair in long calls; None: 1");
    o.number("factor", factor, "how many times longer the context has become, for A");
    o.size("original_max_position_embeddings", original_max_position_embeddings,
           "the original context, in positions; longer calls are long ones", 2);
    o.number("attention_factor", attention_factor, "A itself; None: by the formula");
    o.size("length", length, "one more than the last position; None: that of each call");
  }

  double magnitude() const {
    if (attention_factor) return *attention_factor;
    if (factor <= 1) return 1.0;
    const auto original = static_cast<double>(original_max_position_embeddings);
    return std::sqrt(1.0 + std::log(factor) / std::log(original));
  }

  // Frequencies of pairs that turn slower by a list.
  std::vector<double> slower(const Builder& b, const char* name,
                             const std::optional<std::vector<double>>& by) const {
    const auto pairs = static_cast<size_t>(rotary.rotation(b).dims / 2);
    b.require(!by || by->size() == pairs, name, ": expected a number for each of ", pairs,
              " pairs, got ", by ? by->size() : 0);
    const Rotation turn = rotary.rescaled(b, [&](auto w, size_t p) {
      using Real = decltype(w);
      return by ? 1 / (static_cast<Real>((*by)[p]) * (1 / w)) : w;
    });
    const std::vector<double>& frequency = turn.by<Rotation::ByPosition>()->frequency;
    for (const double w : frequency) {
      b.require(std::isfinite(w), name, ": expected numbers other than 0");
    }
    return frequency;
  }

  void terms(Builder& b) const {
    const std::vector<double> near = slower(b, "short_factor", short_factor);
    const std::vector<double> far = slower(b, "long_factor", long_factor);
    const auto frequency = [=, most = original_max_position_embeddings](int64_t found) {
      return found > most ? far : near;
    };
    Rotation turn = rotary.rotation(b);
    turn.magnitude = magnitude();
    b.rotation(turn, TurnBy::Length{frequency, length});
  }
};

}  // namespace

RELPOS_SCHEME(rope_longrope, LongRoPE, "LongRoPE",
              "RoPE for longer contexts: each pair turns slower by a factor of its own",
              "Ding et al. 2024, LongRoPE; Hugging Face rope_type longrope")

}  // namespace relpos
