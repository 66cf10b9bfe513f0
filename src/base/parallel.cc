#include "base/parallel.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <mutex>
#include <thread>

#include "base/team.h"
#include "relpos/error.h"

namespace relpos {
namespace {

std::atomic<int64_t> teams{0};

// The innermost call of this thread, which check_cancelled() asks.
thread_local CallScope* innermost = nullptr;
thread_local TaskScope* tasks_here = nullptr;  // of the innermost call

// Ends a task because another one has thrown.
struct Abandoned : std::exception {};

}  // namespace

// A worker's tasks, which belong to the call of the thread that started them.
class TaskScope {
 public:
  TaskScope(Stopper& stopper, int worker, CallScope* call)
      : stopper_(stopper), worker_(worker), outer_(tasks_here), outer_call_(innermost) {
    tasks_here = this;
    innermost = call;
  }
  ~TaskScope() {
    tasks_here = outer_;
    innermost = outer_call_;
  }
  TaskScope(const TaskScope&) = delete;
  TaskScope& operator=(const TaskScope&) = delete;

  bool stopped() const {
    bool any = stopper_.stopped(worker_);
    for (CallScope* scope = innermost; scope != nullptr && !any; scope = scope->outer_) {
      any = scope->stopper_.stopped(worker_);
    }
    return any;
  }
  void check() const {
    if (!stopped()) return;
    stopper_.check();
    for (CallScope* scope = innermost; scope != nullptr; scope = scope->outer_) {
      scope->stopper_.check();
    }
    throw Abandoned();
  }

 private:
  Stopper& stopper_;
  const int worker_;  // 0: the calling thread
  TaskScope* outer_;
  CallScope* outer_call_;
};

Stopper::Stopper(CancelToken* token)
    : token_(token), last_poll_(std::chrono::steady_clock::now()) {}

bool Stopper::stopped(int worker) {
  if (abandoned_.load(std::memory_order_relaxed)) return true;
  if (token_ == nullptr) return false;
  if (token_->requested.load(std::memory_order_relaxed)) return true;
  if (worker != 0 || !token_->poll) return false;
  const auto now = std::chrono::steady_clock::now();
  if (now - last_poll_ < token_->interval) return false;
  last_poll_ = now;
  // The poll is the caller's code, a handler of Python's signals, say: it runs in the caller's mode.
  const FloatMode mode(innermost != nullptr ? innermost->callers_ : read_float_control());
  if (token_->poll()) token_->requested.store(true, std::memory_order_relaxed);
  return token_->requested.load(std::memory_order_relaxed);
}

void Stopper::check() const {
  if (token_ != nullptr && token_->requested.load(std::memory_order_relaxed)) {
    throw_error(ErrorKind::kCancelled, "cancelled: the cancel token asked this call to stop");
  }
}

CallScope::CallScope(CancelToken* token)
    : stopper_(token),
      outer_(innermost),
      outer_tasks_(tasks_here),
      callers_(outer_ != nullptr ? outer_->callers_ : mode_.before()) {
  innermost = this;
  tasks_here = nullptr;
}

CallScope::~CallScope() {
  innermost = outer_;
  tasks_here = outer_tasks_;
}

void check_cancelled() {
  if (tasks_here != nullptr) return tasks_here->check();
  for (CallScope* scope = innermost; scope != nullptr; scope = scope->outer_) {
    if (scope->stopper_.stopped(0)) scope->stopper_.check();
  }
}

int thread_count(int requested) {
  const int wanted = requested > 0 ? requested : default_threads();
  if (wanted <= 1) return 1;
  return std::min(wanted, std::max(1, usable_cores()));
}

namespace detail {

namespace {

// Keeps the exception of the first task among those that the workers of a team threw.
class FirstError {
 public:
  void take(int64_t task) noexcept {
    const std::lock_guard lock(mutex_);
    if (task >= task_) return;
    task_ = task;
    error_ = std::current_exception();
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  // A poll between two tasks counts as a task after all.
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  std::mutex mutex_;
  int64_t task_ = kNone;
  std::exception_ptr error_;
};

// Asks while helpers are at tasks, which may be long ones. The wait is short in most calls, and then
// costs no more than that at the end of a team.
void poll_while(const std::atomic<int>& helpers, const TaskScope& scope) {
  constexpr int kSpins = 1000, kYields = 1000;
  constexpr auto kNap = std::chrono::microseconds(200);
  for (int n = 0; helpers.load(std::memory_order_acquire) > 0;
       n = std::min(n + 1, kSpins + kYields)) {
    if (n < kSpins) continue;
    if (scope.stopped()) return;
    if (n < kSpins + kYields) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kNap);
    }
  }
}

}  // namespace

void run_tasks(int64_t tasks, int threads, Stopper& stopper, TaskFunction function, void* context) {
  std::atomic<int64_t> next{0};
  std::atomic<int> helpers{0};  // that may be at a task
  FirstError error;
  const auto work = [&, call = innermost](int worker) {
    const FloatMode mode;
    const TaskScope scope(stopper, worker, call);
    int64_t task = tasks;
    if (worker != 0) helpers.fetch_add(1, std::memory_order_relaxed);
    try {
      while (!scope.stopped()) {
        // Whoever finds no task left sees all helpers that have one.
        task = next.fetch_add(1, std::memory_order_acq_rel);
        if (task >= tasks) break;
        function(context, task, worker);
        task = tasks;
      }
      if (worker == 0) poll_while(helpers, scope);
    } catch (const Abandoned&) {
      stopper.abandon();  // as it is: the error is another task's
    } catch (...) {
      stopper.abandon();
      error.take(task);
    }
    if (worker != 0) helpers.fetch_sub(1, std::memory_order_release);
  };
  const int workers = static_cast<int>(std::min<int64_t>(threads, tasks));
  if (workers <= 1) {
    work(0);
  } else {
    teams.fetch_add(1, std::memory_order_relaxed);
    relpos::run_team(workers, threads, work);
  }
  error.rethrow();
}

int64_t teams_run() noexcept { return teams.load(std::memory_order_relaxed); }

}  // namespace detail
}  // namespace relpos
