#include "base/team.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>

#include "base/pool.h"
#include "base/thread_grant.h"

#ifdef RELPOS_STD_THREADS
#include "base/loaded_openmp.h"
#else
#include <omp.h>
#endif

namespace relpos {
namespace {

std::atomic<bool> forked{false};

// Registered when the library is loaded, so that a fork between two calls is seen too.
[[maybe_unused]] const int at_fork_registered = pthread_atfork(nullptr, nullptr, [] {
  forked.store(true, std::memory_order_relaxed);
  forget_pools();
});

}  // namespace

bool in_forked_child() noexcept { return forked.load(std::memory_order_relaxed); }

#ifdef RELPOS_STD_THREADS

int default_threads() {
  const LoadedOpenMP* openmp = loaded_openmp();
  return openmp != nullptr ? openmp->max_threads() : pool_threads();
}

int usable_cores() {
  const LoadedOpenMP* openmp = loaded_openmp();
  return openmp != nullptr ? openmp->cores : pool_cores();
}

const char* thread_backend() {
  const LoadedOpenMP* openmp = in_forked_child() ? nullptr : loaded_openmp();
  return openmp != nullptr ? openmp->title.c_str() : "own pool";
}

namespace detail {

void enter_team(int workers, int threads, Work work, void* context) {
  const LoadedOpenMP* openmp = in_forked_child() ? nullptr : loaded_openmp();
  if (openmp == nullptr) return run_in_pool(workers, work, context);
  struct Team {
    Work work;
    void* context;
    int (*number)();
  } team{work, context, openmp->thread_number};
  const auto enter = [](void* data) {
    const Team& mine = *static_cast<Team*>(data);
    mine.work(mine.context, mine.number());
  };
  // The whole team: libgomp ends the threads that a smaller one leaves out, and the next makes them anew.
  openmp->parallel(enter, &team, static_cast<unsigned>(granted_threads(threads)), 0);
}

}  // namespace detail

#else

int default_threads() { return omp_get_max_threads(); }

int usable_cores() {
  static const int cores = omp_get_num_procs();
  return cores;
}

const char* thread_backend() { return in_forked_child() ? "own pool" : "OpenMP"; }

namespace detail {

void enter_team(int workers, int threads, Work work, void* context) {
  if (in_forked_child()) return run_in_pool(workers, work, context);
  // The whole team: libgomp ends the threads that a smaller one leaves out, and the next makes them anew.
  const int team = granted_threads(threads);
#pragma omp parallel num_threads(team)
  work(context, omp_get_thread_num());
}

}  // namespace detail

#endif

}  // namespace relpos
