#include "schemes/common/rotary.h"

#include "schemes/common/frequencies.h"

namespace relpos::common {

void Rotary::options(OptionList& o) {
  o.required("head_dim", head_dim, "size of a query and key head");
  o.keyword_only();
  o.required("layout", layout, {"interleaved", "half"},
             "pairs (2p, 2p + 1), as GPT-J and Meta's Llama, or (p, p + rotary_dim / 2), as "
             "GPT-NeoX and Hugging Face");
  o.number("base", base, "pair p turns by base^(-2p / rotary_dim) a position");
  o.size("rotary_dim", rotary_dim, "first dimensions of the head that turn; None: all", 2);
  o.choice("angle", angle, {"double", "float32"},
           "precision of frequencies and angles; float32 repeats Hugging Face's rounding");
}

Rotation Rotary::rotation(const Builder& b) const {
  b.require(base > 0, "base: expected a number above 0, got ", base);
  if (!rotary_dim) {
    b.require(head_dim % 2 == 0, "head_dim: expected an even number, got ", head_dim,
              "; give an even rotary_dim to turn a part of the head");
  } else {
    b.require(*rotary_dim % 2 == 0 && *rotary_dim <= head_dim,
              "rotary_dim: expected an even number up to head_dim=", head_dim, ", got ",
              *rotary_dim);
  }
  Rotation turn;
  turn.dims = rotary_dim.value_or(head_dim);
  turn.layout = layout == "half" ? PairLayout::kHalf : PairLayout::kInterleaved;
  turn.float32_angles = angle == "float32";
  turn.frequency = turn.float32_angles ? rotary_frequencies_float32(turn.dims, base)
                                       : rotary_frequencies(turn.dims, base);
  return turn;
}

}  // namespace relpos::common
