#include "kernels/terms/query_added.h"

namespace relpos {

QueryAdded::Sums::Sums(const Plan& plan, const TermGradients& wants, SumMemory& memory)
    : added(memory.doubles(std::ranges::any_of(wants.query_added, wanted),
                           plan.p.group() * plan.D)) {}

void QueryAdded::finish(const BlockGradients& rows, const Sums& sums) {
  for (int row = 0; row < rows.block.rows && sums.added != nullptr; ++row) {
    for (int64_t d = 0; d < plan_.D; ++d) {
      sums.added[rows.g * plan_.D + d] += static_cast<double>(rows.dq[row * plan_.Dp + d]);
    }
  }
}

void QueryAdded::reduce(const Plan& plan, const Sums& sums, int64_t kv_head, TermGradients& to) {
  const int64_t numbers = plan.p.group() * plan.D;
  for (size_t n = 0; n < to.query_added.size(); ++n) {
    std::vector<double>& gradient = to.query_added[n];
    const double by = plan.p.terms.query_added[n].multiplier;
    for (int64_t d = 0; !gradient.empty() && d < numbers; ++d) {
      gradient[kv_head * numbers + d] += sums.added[d] * by;
    }
  }
}

}  // namespace relpos
