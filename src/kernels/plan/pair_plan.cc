#include "kernels/plan/pair_plan.h"

#include <utility>

#include "kernels/block/log2.h"
#include "kernels/block/pair_panel.h"

namespace relpos {

std::vector<PairBiasPlan> expand_pair_biases(const Problem& p, Workspace& memory) {
  std::vector<PairBiasPlan> plans;
  for (const PairBias& term : p.terms.pair_biases) {
    PairBiasPlan& plan = plans.emplace_back();
    const TensorView& table = term.table.view;
    plan.heads = table.shape[0];
    plan.classes = table.shape[1];
    plan.stride = pair_stride(term.classes, plan.classes);
    plan.cells = memory.zeros<float>(plan.heads * plan.stride);
    for (int64_t h = 0; h < plan.heads; ++h) {
      for (int64_t c = 0; c < plan.classes; ++c) {
        plan.cells[h * plan.stride + c] =
            static_cast<float>(to_log2(table.at({h, c}) * term.table.multiplier));
      }
    }
  }
  return plans;
}

std::vector<TablePlan> expand_pair_rows(const Problem& p, bool backward, Workspace& memory) {
  std::vector<TablePlan> plans;
  for (const PairRows& term : p.terms.pair_rows) {
    const TensorView& table = term.table.view;
    const int64_t classes = table.shape[table.rank == 3 ? 1 : 0];
    ClassWindow window(ClassMap::clamp(0, classes - 1), {0, classes - 1}, memory);
    plans.emplace_back(p, std::move(window), term.table, false, backward, true, memory);
    plans.back().scale = term.scale.value_or(p.scale);
  }
  return plans;
}

}  // namespace relpos
