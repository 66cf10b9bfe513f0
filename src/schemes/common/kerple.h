// What the two forms of KERPLE share: their options and parameters (Chi et al. 2022).
#pragma once

#include <algorithm>
#include <cmath>

#include "relpos/scheme.h"

namespace relpos::common {

struct Kerple {
  int64_t heads = 0;
  bool symmetric = true;

  void options(OptionList& o) {
    o.required("heads", heads, "query heads");
    o.keyword_only();
    o.flag("symmetric", symmetric, "the future is penalised as the past; else its bias is 0");
  }

  Source p(Builder& b) const {
    return b.parameter("bias_p", {heads, 1, 1}, Init::uniform(0, 2), "p of each head");
  }
  Source a(Builder& b) const {
    return b.parameter("bias_a", {heads, 1, 1}, Init::uniform(0, 1), "a of each head");
  }
  double distance(double delta) const {
    return symmetric ? std::fabs(delta) : std::max(-delta, 0.0);
  }
};

}  // namespace relpos::common
