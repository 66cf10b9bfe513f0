// The one place that starts threads: OpenMP through the shared libgomp.so.1, or std::thread with
// -DRELPOS_THREADS=std (ThreadSanitizer cannot see into libgomp).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "relpos/attention.h"

namespace relpos {

// Stops a call when its token asks for it. Worker 0 is the calling thread, the only one that polls.
class Stopper {
 public:
  explicit Stopper(CancelToken* token);
  bool stopped(int worker);
  // Throws Error(kCancelled) if the token asked to stop.
  void check() const;

 private:
  CancelToken* token_;
  std::chrono::steady_clock::time_point last_poll_;
};

// Threads that a call may use: `requested`, else the runtime's default; 1 in a forked child, where
// libgomp's pool does not exist and waiting for it would hang.
int thread_count(int requested);
bool in_forked_child() noexcept;
const char* thread_backend() noexcept;

namespace detail {
using TaskFunction = void (*)(void* context, int64_t task, int worker);
void run_tasks(int64_t tasks, int threads, Stopper& stopper, TaskFunction function, void* context);
}  // namespace detail

// Calls function(task, worker) once for each task in [0, tasks), dealt in ascending order from one
// counter; worker < threads. Which worker takes a task must not change any result. `function` must
// not throw. Returns early, with tasks left undone, once stopped.
template <typename F>
void parallel_for(int64_t tasks, int threads, Stopper& stopper, F&& function) {
  detail::run_tasks(
      tasks, threads, stopper,
      [](void* context, int64_t task, int worker) {
        (*static_cast<std::remove_reference_t<F>*>(context))(task, worker);
      },
      &function);
}

}  // namespace relpos
