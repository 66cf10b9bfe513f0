// Su et al. 2021 (RoFormer): queries and keys turn by their positions, so that their products see
// the distance alone.
//
//   pair p of a head turns by pos * base^(-2 p / rotary_dim); dimensions from rotary_dim on stay
#include "schemes/common/rotary.h"

namespace relpos {

namespace {

struct RoPE : common::Rotary {
  void terms(Builder& b) const { b.rotation(rotation(b)); }
};

}  // namespace

RELPOS_SCHEME(rope, RoPE, "RoPE", "queries and keys turn by their positions",
              "Su et al. 2021, RoFormer: Enhanced Transformer with Rotary Position Embedding, 3.2")

}  // namespace relpos
