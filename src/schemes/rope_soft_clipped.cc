// Li et al. 2026 (Clipped RoPE, CoPE there): RoPE whose slowest pairs fade out of turning.
//
//   the last n pairs, p = 0 .. n - 1 among them, turn (1 + cos(pi p / (n - 1))) / 2 times as fast
//
// The first of them turns as before and the last stands still. n is `clipped`, at most all pairs.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "schemes/common/rotary.h"

namespace relpos {

namespace {

struct SoftClippedRoPE {
  common::Rotary rotary;
  int64_t clipped = 20;

  void options(OptionList& o) {
    rotary.options(o);
    o.size("clipped", clipped, "pairs that turn slower, the slowest ones; 0: none", 0);
  }

  void terms(Builder& b) const {
    const int64_t pairs = rotary.rotation(b).dims / 2;
    const int64_t fading = std::min(clipped, pairs);
    b.rotation(rotary.rescaled(b, [=](auto w, size_t pair) {
      using Real = decltype(w);
      const int64_t p = static_cast<int64_t>(pair) - (pairs - fading);
      if (p <= 0) return w;
      const Real part = std::numbers::pi_v<Real> / static_cast<Real>(fading - 1);
      return w * ((1 + std::cos(static_cast<Real>(p) * part)) / 2);
    }));
  }
};

}  // namespace

RELPOS_SCHEME(rope_soft_clipped, SoftClippedRoPE, "SoftClippedRoPE",
              "RoPE whose slowest pairs turn slower and slower, the last not at all",
              "Li et al. 2026, CoPE: Clipped RoPE as a Scalable Free Lunch for Long Context LLMs")

}  // namespace relpos
