// Chi et al. 2022 (KERPLE), logarithmic: a penalty that grows ever more slowly with the distance.
//
//   score[h,i,j] += -p_h ln(1 + a_h n),   n = |pos_k - pos_q|; with symmetric=False 0 for the future
//
// As in gpt-neox, p and a are read as at least 0.01, and their gradients pass as they are.
#include "schemes/common/kerple.h"

namespace relpos {

namespace {

struct KerpleLog : common::Kerple {
  void terms(Builder& b) const {
    const Source p_h = p(b), a_h = a(b);
    b.bias([*this](double delta, auto p, auto a) { return -p * ln(1.0 + a * distance(delta)); },
           p_h.at_least(0.01), a_h.at_least(0.01));
  }
};

}  // namespace

RELPOS_SCHEME(kerple_log, KerpleLog, "KerpleLog",
              "a penalty that grows with the logarithm of the distance, learned for each head",
              "Chi, Fan, Ramadge, Rudnicky 2022, KERPLE, section 4")

}  // namespace relpos
