// A row table that is a projection of features of the distance: sinusoids, mostly.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/parallel.h"
#include "recipe.h"
#include "relpos/terms.h"

namespace relpos {

// Calls f(task) for each task on the threads of a call. Results must not depend on their number.
template <typename F>
void in_parallel(int threads, int64_t tasks, F&& f) {
  Stopper stopper(nullptr);
  const auto workers = static_cast<int>(std::min<int64_t>(threads, tasks));
  parallel_for(tasks, std::max(workers, 1), stopper, [&](int64_t task, int) { f(task); });
  check_cancelled();
}
template <typename F>
void in_parallel(const PartCall& call, int64_t tasks, F&& f) {
  in_parallel(call.sizes.threads, tasks, f);
}

// table[h, m, d] = <weight[h D + d, :], features(first + m)>, in float32 or in double.
struct Projection {
  int64_t heads, head_dim, width, first, span;
  bool in_double;
  int threads;
  const std::function<void(int64_t delta, double* features)>& features;

  // [heads, span, head_dim], owned; `weight` [heads head_dim, width].
  TermData table(const std::vector<double>& weight) const;
  // Of `table_gradient` [heads, span, head_dim]: [heads head_dim, width].
  std::vector<double> weight_gradient(const std::vector<double>& table_gradient) const;
};

}  // namespace relpos
