// What tables that are computed for the distances of a call share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "base/parallel.h"
#include "binding/recipe.h"

namespace relpos {

// Calls f(task) for each task on the threads of a call. Results must not depend on their number.
template <typename F>
void in_parallel(int threads, int64_t tasks, F&& f) {
  Stopper stopper(nullptr);
  parallel_for(tasks, std::max(threads, 1), stopper, [&](int64_t task, int) { f(task); });
  check_cancelled();
}

// The distances of a call, 1 where there is none. Throws Error, in the scheme's name, where they reach
// too far for a table that takes `numbers` for each.
int64_t distance_count(const CallSizes& sizes, int64_t numbers, const std::string& scheme);

}  // namespace relpos
