// Chi et al. 2022 (KERPLE), logarithmic: a penalty that grows ever more slowly with the distance.
//
//   score[h,i,j] += -p_h ln(1 + a_h n),   n = |pos_k - pos_q|; with symmetric=False 0 for the future
//
// As in gpt-neox, p and a are read as at least 0.01, and their gradients pass as they are.
#include "relpos/scheme.h"

namespace relpos {

namespace {

struct KerpleLog {
  int64_t heads = 0;
  bool symmetric = true;

  void options(OptionList& o) {
    o.required("heads", heads, "query heads");
    o.keyword_only();
    o.flag("symmetric", symmetric, "the future is penalised as the past; else its bias is 0");
  }

  void terms(Builder& b) const {
    const Source p = b.parameter("bias_p", {heads, 1, 1}, Init::uniform(0, 2),
                                 "how much each head's penalty weighs");
    const Source a = b.parameter("bias_a", {heads, 1, 1}, Init::uniform(0, 1),
                                 "how fast it grows near distance 0");
    const auto penalty = [both = symmetric](double delta, auto p_h, auto a_h) {
      const double n = both ? std::abs(delta) : std::max(-delta, 0.0);
      return -p_h * ln(1.0 + a_h * n);
    };
    b.bias(penalty, p.at_least(0.01), a.at_least(0.01));
  }
};

}  // namespace

RELPOS_SCHEME(kerple_log, KerpleLog, "KerpleLog",
              "a penalty that grows with the logarithm of the distance, learned for each head",
              "Chi, Fan, Ramadge, Rudnicky 2022, KERPLE, section 4")

}  // namespace relpos
