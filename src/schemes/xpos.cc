// Sun et al. 2023 (xPos): RoPE whose products also decay with the distance, fast pairs most.
//
//   query: R(pos) q zeta_p^(pos / scale_base),   key: R(pos) k zeta_p^(-pos / scale_base)
//   zeta_p = (2 p + 0.4 d) / (1.4 d),   d = rotary_dim
//
// A product of pair p thus decays by zeta_p^(n / scale_base), n = pos_q - pos_k, and grows for keys of
// the future: made for causal attention.
#include <cmath>

#include "schemes/common/rotary.h"

namespace relpos {

namespace {

struct XPos {
  common::Rotary rotary;
  double scale_base = 512.0;

  void options(OptionList& o) {
    rotary.options(o);
    o.number("scale_base", scale_base, "positions in which pair p decays by zeta_p");
  }

  void terms(Builder& b) const {
    b.require(scale_base > 0, "scale_base: expected a number above 0, got ", scale_base);
    Rotation turn = rotary.rotation(b);
    const auto dims = static_cast<double>(turn.dims);
    for (size_t p = 0; p < turn.by_position().frequency.size(); ++p) {
      const double zeta = (2.0 * static_cast<double>(p) + 0.4 * dims) / (1.4 * dims);
      turn.by_position().log_decay.push_back(-std::log(zeta) / scale_base);
    }
    b.rotation(turn);
  }
};

}  // namespace

RELPOS_SCHEME(xpos, XPos, "XPos", "RoPE whose products decay with the distance",
              "Sun et al. 2023, A Length-Extrapolatable Transformer, section 3")

}  // namespace relpos
