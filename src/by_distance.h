// Helpers for tables that are computed for the distances of a call.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "base/parallel.h"
#include "recipe.h"

namespace relpos {

// Calls f(task) for each task on the threads of a call. Results must not depend on their number.
template <typename F>
void in_parallel(int threads, int64_t tasks, F&& f) {
  Stopper stopper(nullptr);
  const auto workers = static_cast<int>(std::min<int64_t>(threads, tasks));
  parallel_for(tasks, std::max(workers, 1), stopper, [&](int64_t task, int) { f(task); });
  check_cancelled();
}

// How many distances a call has, at least 1. Throws an Error that names the scheme if they are too many
// for a table with `numbers` for each.
int64_t distance_count(const CallSizes& sizes, int64_t numbers, const std::string& scheme);

}  // namespace relpos
