// A vector of a head that is added to its queries before they turn, when they are loaded.
// Reference twins: Head::unturned() and HeadGradient::add_row().
#pragma once

#include "kernels/terms/term.h"

namespace relpos {

class QueryAdded : public Term {
 public:
  struct Sums : TermSums {
    double* added;  // [group, D]

    Sums(const Plan& plan, const TermGradients& wants, SumMemory& memory);
  };

  QueryAdded(const Plan& plan, Workspace&) : Term(plan) {}
  bool reads_dq(const Sums& sums) const { return sums.added != nullptr; }
  void finish(const BlockGradients& rows, const Sums& sums);
  static void reduce(const Plan& plan, const Sums& sums, int64_t kv_head, TermGradients& to);
};

}  // namespace relpos
