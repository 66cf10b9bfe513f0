// Chi et al. 2022 (KERPLE), power: a penalty that grows with a power of the distance.
//
//   score[h,i,j] += -a_h n^p_h,   n = |pos_k - pos_q|; with symmetric=False 0 for the future
//
// As in gpt-neox, a is read as at least 0.01 and p as 0.01 to 2; their gradients pass as they are.
#include "relpos/scheme.h"

namespace relpos {

namespace {

struct KerplePower {
  int64_t heads = 0;
  bool symmetric = true;

  void options(OptionList& o) {
    o.required("heads", heads, "query heads");
    o.keyword_only();
    o.flag("symmetric", symmetric, "the future is penalised as the past; else its bias is 0");
  }

  void terms(Builder& b) const {
    const Source p =
        b.parameter("bias_p", {heads, 1, 1}, Init::uniform(0, 2), "the power of each head, 0 to 2");
    const Source a = b.parameter("bias_a", {heads, 1, 1}, Init::uniform(0, 1),
                                 "how much each head's penalty weighs");
    const auto penalty = [both = symmetric](double delta, auto p_h, auto a_h) {
      const double n = both ? std::abs(delta) : std::max(-delta, 0.0);
      return -a_h * pow(n, p_h);
    };
    b.bias(penalty, p.at_least(0.01).at_most(2), a.at_least(0.01));
  }
};

}  // namespace

RELPOS_SCHEME(kerple_power, KerplePower, "KerplePower",
              "a penalty that grows with a power of the distance, learned for each head",
              "Chi, Fan, Ramadge, Rudnicky 2022, KERPLE, section 4")

}  // namespace relpos
