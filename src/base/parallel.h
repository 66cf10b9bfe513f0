// Only this file starts threads: OpenMP through the shared libgomp.so.1, or std::thread with
// -DRELPOS_THREADS=std (ThreadSanitizer cannot see into libgomp). It also sets the floating-point mode
// of every thread that computes for a call, and checks the call's cancel token.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <type_traits>

#include "base/float_mode.h"
#include "relpos/cancel.h"

namespace relpos {

// Stops a call when its token requests it. Worker 0 is the calling thread, the only one that polls.
class Stopper {
 public:
  explicit Stopper(CancelToken* token);
  bool stopped(int worker);
  // Throws Error(kCancelled) if the token requested it.
  void check() const;
  // From now on stopped() is true for every worker.
  void abandon() noexcept { abandoned_.store(true, std::memory_order_relaxed); }

 private:
  CancelToken* token_;
  std::atomic<bool> abandoned_{false};
  std::chrono::steady_clock::time_point last_poll_;
};

// One public call on this thread: keeps denormals and rounds to nearest, whatever mode the caller has,
// and sets the token that check_cancelled() checks. Calls may nest.
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

// For loops on the calling thread: throws Error(kCancelled) if the call's token requests it. It reads
// the clock. On a thread without a call it does nothing.
void check_cancelled();

// Calls check_cancelled() once in `kEvery` calls, for loops whose steps take less time than the clock.
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
// process may use; 1 in a forked child, where libgomp's pool does not exist and waiting for it would
// hang.
int thread_count(int requested);
bool in_forked_child() noexcept;
const char* thread_backend() noexcept;

namespace detail {
using TaskFunction = void (*)(void* context, int64_t task, int worker);
void run_tasks(int64_t tasks, int threads, Stopper& stopper, TaskFunction function, void* context);
}  // namespace detail

// Calls function(task, worker) once for each task in [0, tasks), in ascending order from one counter;
// worker < threads. No result may depend on which worker computes a task. If the system does not grant
// enough threads, fewer are used. Once stopped, it returns early without the remaining tasks. If a task
// or the token's poll throws, the other workers stop, and the exception is thrown here; if several
// tasks throw, that of the first task.
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
