#include "base/parallel.h"

#include <pthread.h>

#include <algorithm>
#include <memory>

#ifdef RELPOS_STD_THREADS
#include <thread>
#include <vector>
#else
#include <omp.h>
#endif

namespace relpos {
namespace {

std::atomic<bool> forked{false};

// Registered when the library is loaded, so that a fork between two calls is seen too.
[[maybe_unused]] const int at_fork_registered =
    pthread_atfork(nullptr, nullptr, [] { forked.store(true, std::memory_order_relaxed); });

constexpr auto kPollInterval = std::chrono::milliseconds(50);

}  // namespace

Stopper::Stopper(CancelToken* token)
    : token_(token), last_poll_(std::chrono::steady_clock::now()) {}

bool Stopper::stopped(int worker) {
  if (token_ == nullptr) return false;
  if (token_->requested.load(std::memory_order_relaxed)) return true;
  if (worker != 0 || !token_->poll) return false;
  const auto now = std::chrono::steady_clock::now();
  if (now - last_poll_ < kPollInterval) return false;
  last_poll_ = now;
  if (token_->poll()) token_->requested.store(true, std::memory_order_relaxed);
  return token_->requested.load(std::memory_order_relaxed);
}

void Stopper::check() const {
  if (token_ != nullptr && token_->requested.load(std::memory_order_relaxed)) {
    throw_error(ErrorKind::kCancelled, "cancelled: the cancel token asked this call to stop");
  }
}

bool in_forked_child() noexcept { return forked.load(std::memory_order_relaxed); }

#ifdef RELPOS_STD_THREADS

const char* thread_backend() noexcept { return "std::thread"; }

int thread_count(int requested) {
  if (in_forked_child()) return 1;
  if (requested > 0) return requested;
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

#else

const char* thread_backend() noexcept { return "OpenMP"; }

int thread_count(int requested) {
  if (in_forked_child()) return 1;
  return std::max(1, requested > 0 ? requested : omp_get_max_threads());
}

#endif

namespace detail {

void run_tasks(int64_t tasks, int threads, Stopper& stopper, TaskFunction function, void* context) {
  std::atomic<int64_t> next{0};
  const auto work = [&](int worker) {
    while (!stopper.stopped(worker)) {
      const int64_t task = next.fetch_add(1, std::memory_order_relaxed);
      if (task >= tasks) return;
      function(context, task, worker);
    }
  };
  const int workers = static_cast<int>(std::min<int64_t>(threads, tasks));
  if (workers <= 1) {
    work(0);
    return;
  }
#ifdef RELPOS_STD_THREADS
  std::vector<std::thread> helpers;
  helpers.reserve(static_cast<size_t>(workers) - 1);
  for (int worker = 1; worker < workers; ++worker) helpers.emplace_back(work, worker);
  work(0);
  for (std::thread& helper : helpers) helper.join();
#else
#pragma omp parallel num_threads(workers)
  work(omp_get_thread_num());
#endif
}

}  // namespace detail
}  // namespace relpos
