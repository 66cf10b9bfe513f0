// Parallel tasks of a call, and what holds for a whole call: the floating-point mode of every thread that
// computes, and the token that ends it.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <type_traits>

#include "base/float_mode.h"
#include "relpos/cancel.h"
#include "relpos/export.h"

RELPOS_EXPORT_BEGIN
namespace relpos {

class TaskScope;

// Stops a call when its token asks for it. Worker 0 is the calling thread, the only one that polls.
class Stopper {
 public:
  explicit Stopper(CancelToken* token);
  bool stopped(int worker);
  // Throws Error(kCancelled) if the token asked to stop.
  void check() const;
  // From now on stopped() is true for every worker.
  void abandon() noexcept { abandoned_.store(true, std::memory_order_relaxed); }

 private:
  CancelToken* token_;
  std::atomic<bool> abandoned_{false};
  std::chrono::steady_clock::time_point last_poll_;
};

// One public call on this thread: keeps denormals and rounds to nearest, whatever the caller does, and
// names the token that check_cancelled() asks, here and in tasks of the call. Calls may nest.
class CallScope {
 public:
  explicit CallScope(CancelToken* token);
  ~CallScope();
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

 private:
  FloatMode mode_;
  Stopper stopper_;
  CallScope* outer_;
  TaskScope* outer_tasks_;
  FloatControl callers_;
  friend class Stopper;
  friend class TaskScope;
  friend void check_cancelled();
};

// For every loop, on the calling thread and in tasks: throws Error(kCancelled) if the call's token asks
// to stop, and ends a task where another one has thrown. On the calling thread it reads the clock; on a
// thread that works for no call it does nothing.
void check_cancelled();

// Asks check_cancelled() once in `kEvery` steps, for loops whose steps cost less than the clock.
class CancelTicks {
 public:
  static constexpr int64_t kEvery = 4096;

  // Before `steps` of some nanoseconds each, an exp at most.
  void operator()(int64_t steps = 1) {
    count_ += steps;
    if (count_ < kEvery) return;
    count_ = 0;
    check_cancelled();
  }

 private:
  int64_t count_ = 0;
};

// Calls f(from, to) for pieces of [0, count) in order, and asks between them: for loops over numbers in
// memory, whose steps cost less than a tick.
template <typename F>
void in_pieces(int64_t count, F&& f) {
  constexpr int64_t kPiece = int64_t{1} << 16;
  for (int64_t from = 0; from < count; from += kPiece) {
    if (from > 0) check_cancelled();
    f(from, std::min(count, from + kPiece));
  }
}

// Threads that a call may use: `requested`, else the runtime's default, at most the cores that this
// process may use.
int thread_count(int requested);

namespace detail {
using TaskFunction = void (*)(void* context, int64_t task, int worker);
void run_tasks(int64_t tasks, int threads, Stopper& stopper, TaskFunction function, void* context);
int64_t teams_run() noexcept;  // of several threads, so far
}  // namespace detail

// Calls function(task, worker) once for each task in [0, tasks), dealt in ascending order from one
// counter; worker < threads. Which worker takes a task must not change any result. Fewer threads run
// where the system grants no more. Returns early, with tasks left undone, once `stopper` or the call is
// stopped; the calling thread polls until the last task has ended. What a task or the token's poll
// throws ends the others, too, and is thrown here: of several, that of the first task.
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
RELPOS_EXPORT_END
