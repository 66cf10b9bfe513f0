// Chi et al. 2022 (KERPLE), power: a penalty that grows with a power of the distance.
//
//   score[h,i,j] += -a_h n^p_h,   n = |pos_k - pos_q|; with symmetric=False 0 for the future
//
// As in gpt-neox, a is read as at least 0.01 and p as 0.01 to 2; their gradients pass as they are.
#include "schemes/common/kerple.h"

namespace relpos {

namespace {

struct KerplePower : common::Kerple {
  void terms(Builder& b) const {
    const Source p_h = p(b), a_h = a(b);
    b.bias([*this](double delta, auto p, auto a) { return -a * pow(distance(delta), p); },
           p_h.at_least(0.01).at_most(2.0), a_h.at_least(0.01));
  }
};

}  // namespace

RELPOS_SCHEME(kerple_power, KerplePower, "KerplePower",
              "a penalty that grows with a power of the distance, learned for each head",
              "Chi, Fan, Ramadge, Rudnicky 2022, KERPLE, section 4")

}  // namespace relpos
