// A call over some heads of a position that has parameters for more: its terms, and their gradients.
#pragma once

#include "relpos/terms.h"

namespace relpos {

struct HeadSlice {
  int64_t first = 0, own = 0, all = 0;

  bool whole() const noexcept { return own == all; }
  // Terms of all heads, cut to these. What is shared by heads, or given for these alone, stays.
  Terms cut(Terms terms) const;
  // Gradients of cut(whole) at their places among those of `whole`; 0 elsewhere.
  TermGradients spread(Terms whole, TermGradients gradients) const;
};

}  // namespace relpos
