// emozilla 2023 (dynamic NTK scaling): RoPE whose base grows with the length of the call.
//
//   base' = base (factor L / max - (factor - 1))^(d / (d - 2)),   d = rotary_dim,
//   L = the last position of the call + 1, or `length`, at least max = max_position_embeddings
//
// All batch rows of a call turn alike. Keys turn in the call that reads them, so that a cache of keys
// stays right when L grows; one of keys that were turned before does not.
#include <algorithm>

#include "schemes/common/ntk.h"

namespace relpos {

namespace {

struct DynamicRoPE {
  common::Rotary rotary;
  double factor = 1.0;
  int64_t max_position_embeddings = 2048;
  std::optional<int64_t> length;

  void options(OptionList& o) {
    rotary.options(o);
    o.number("factor", factor, "how fast the base grows with the length, at least 1");
    o.size("max_position_embeddings", max_position_embeddings,
           "up to this length the base is as it was");
    o.size("length", length, "one more than the last position; None: that of each call");
  }

  void terms(Builder& b) const {
    b.require(factor >= 1, "factor: expected a number of at least 1, got ", factor);
    const Rotation turn = rotary.rotation(b);
    const auto frequency = [*this, dims = turn.dims](int64_t found) {
      const auto most = static_cast<double>(max_position_embeddings);
      const double longest = std::max(static_cast<double>(found), most);
      const double growth = factor * longest / most - (factor - 1);
      return rotary.frequencies(dims, common::ntk_base(rotary.base, growth, dims));
    };
    b.rotation(turn, TurnBy::Length{frequency, length});
  }
};

}  // namespace

RELPOS_SCHEME(rope_dynamic, DynamicRoPE, "DynamicRoPE",
              "RoPE for longer contexts: the base grows with the length of the call",
              "emozilla 2023, Dynamically Scaled RoPE; Hugging Face rope_type dynamic")

}  // namespace relpos
