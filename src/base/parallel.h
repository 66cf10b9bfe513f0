// The one place that starts threads: OpenMP through the shared libgomp.so.1, or std::thread in a forked
// child, where libgomp's pool does not exist and waiting for it would hang, and with
// -DRELPOS_THREADS=std (ThreadSanitizer cannot see into libgomp). And what holds for a whole call:
// the floating-point mode of every thread that computes, and the token that ends it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <type_traits>

#include "base/float_mode.h"
#include "relpos/cancel.h"

namespace relpos {

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
// names the token that check_cancelled() asks. Calls may nest.
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
  FloatControl callers_;
  friend class Stopper;
  friend void check_cancelled();
};

// For loops on the calling thread: throws Error(kCancelled) if the call's token asks to stop. Reads
// the clock. On a thread that called nothing it does nothing.
void check_cancelled();

// Asks check_cancelled() once every `kEvery` calls, for loops whose steps cost less than the clock.
class CancelTicks {
 public:
  void operator()() {
    if (++count_ % kEvery == 0) check_cancelled();
  }

 private:
  static constexpr uint32_t kEvery = 4096;
  uint32_t count_ = 0;
};

// Threads that a call may use: `requested`, else the runtime's default, at most the cores that this
// process may use.
int thread_count(int requested);
bool in_forked_child() noexcept;
const char* thread_backend() noexcept;

namespace detail {
using TaskFunction = void (*)(void* context, int64_t task, int worker);
void run_tasks(int64_t tasks, int threads, Stopper& stopper, TaskFunction function, void* context);
}  // namespace detail

// Calls function(task, worker) once for each task in [0, tasks), dealt in ascending order from one
// counter; worker < threads. Which worker takes a task must not change any result. Fewer threads run
// where the system grants no more. Returns early, with tasks left undone, once stopped. What a task or
// the token's poll throws ends the others, too, and is thrown here: of several, that of the first
// task.
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
