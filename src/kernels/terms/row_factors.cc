#include "kernels/terms/row_factors.h"

#include <algorithm>

#include "kernels/block/load_rows.h"

namespace relpos {

void load_row_factors(const Plan& plan, const TablePlan& table, const TermData& factor,
                      const Block& block, const float* queries, float* to) {
  const int64_t rank = table.padded_rank;
  const bool given = factor.view.given(), adds = table.added.size() > 0;
  const auto by = static_cast<float>(table.scale * kLog2e);
  const auto multiplier = static_cast<float>(factor.multiplier);
  if (!given && !adds) {
    plan.kernels.scale(block.rows, rank, queries, plan.Dp, &by, 0, to, rank);
    return;
  }
  for (int row = 0; row < block.rows; ++row) {
    float* a = to + row * rank;
    if (given) {
      load_row(factor.view, block.batch, block.head[row], block.index[row], table.rank, rank, a);
      plan.kernels.scale(1, table.rank, a, 0, &multiplier, 0, a, 0);
    } else {
      std::copy_n(queries + row * plan.Dp, rank, a);
    }
    if (!adds) continue;
    const float* added = table.added.get() + block.head[row] * rank;
    for (int64_t d = 0; d < rank; ++d) a[d] += added[d];
  }
  plan.kernels.scale(block.rows, rank, to, rank, &by, 0, to, rank);
}

void send_row_factor(const Plan& plan, const TablePlan& table, const TermData& factor,
                     const Block& block, int row, const float* da, float* dq,
                     std::vector<double>& to) {
  const Problem& p = plan.p;
  const double scale = table.scale, by = factor.multiplier;
  if (!factor.view.given()) {
    for (int64_t d = 0; d < table.rank; ++d) {
      dq[d] += static_cast<float>(scale * static_cast<double>(da[d]));
    }
    return;
  }
  if (to.empty()) return;
  const int64_t at =
      ((block.batch * p.heads + block.head[row]) * p.queries + block.index[row]) * table.rank;
  for (int64_t d = 0; d < table.rank; ++d) {
    to[at + d] = scale * static_cast<double>(da[d]) * by;
  }
}

}  // namespace relpos
