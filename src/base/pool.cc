#include "base/pool.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#ifdef __linux__
#include <sched.h>
#endif

namespace relpos {
namespace {

using Work = void (*)(void* context, int worker);

void pause_a_moment() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// A waiting thread spins for some 50 us, the gap between two calls of a model, before it sleeps.
int spins() {
  static const int count = [] {
    const char* policy = std::getenv("OMP_WAIT_POLICY");
    return policy != nullptr && (*policy == 'p' || *policy == 'P') ? 0 : 2000;
  }();
  return count;
}

thread_local bool in_team = false;

// Threads of one team at a time. Never destroyed: its threads sleep until the process ends.
class Pool {
 public:
  void run(int workers, Work work, void* context) {
    grow(workers - 1);
    work_ = work;
    context_ = context;
    const auto places = static_cast<uint64_t>(std::min(workers - 1, made_));
    seats_.store(places << kFree, std::memory_order_release);
    if (places > 0) {
      round_.fetch_add(1, std::memory_order_release);
      round_.notify_all();
    }
    in_team = true;
    work(context, 0);
    in_team = false;
    // Whoever has not come yet need not: what there was to do is done.
    seats_.fetch_and((uint64_t{1} << kFree) - 1, std::memory_order_acq_rel);
    for (int n = 0; (seats_.load(std::memory_order_acquire) & kInside) != 0; ++n) {
      if (n < 1000) {
        pause_a_moment();
      } else if (n < 2000) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    }
  }

 private:
  // seats_: threads inside, threads that have come so far, and from kFree on, places that are free.
  static constexpr int kCame = 16, kFree = 32;
  static constexpr uint64_t kInside = 0xFFFF;

  void grow(int wanted) {
    constexpr size_t kStack = size_t{8} << 20;  // musl's own are too small
    pthread_attr_t attributes;
    if (made_ >= wanted || pthread_attr_init(&attributes) != 0) return;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, kStack);
    const auto start = [](void* self) -> void* {
      static_cast<Pool*>(self)->serve();
      return nullptr;
    };
    pthread_t thread;
    while (made_ < wanted && pthread_create(&thread, &attributes, start, this) == 0) ++made_;
    pthread_attr_destroy(&attributes);
  }

  [[noreturn]] void serve() {
    in_team = true;
    while (true) {
      const uint32_t round = round_.load(std::memory_order_acquire);
      if (const int worker = enter(); worker > 0) {
        work_(context_, worker);
        seats_.fetch_sub(1, std::memory_order_release);
      }
      for (int n = spins(); n > 0 && round_.load(std::memory_order_relaxed) == round; --n) {
        pause_a_moment();
      }
      round_.wait(round, std::memory_order_acquire);
    }
  }

  // This thread's number in the team, or 0 where no place is free.
  int enter() {
    uint64_t seats = seats_.load(std::memory_order_acquire);
    while (seats >> kFree != 0) {
      const uint64_t with_me = seats - (uint64_t{1} << kFree) + (uint64_t{1} << kCame) + 1;
      if (seats_.compare_exchange_weak(seats, with_me, std::memory_order_acq_rel)) {
        return static_cast<int>(with_me >> kCame & 0xFFFF);
      }
    }
    return 0;
  }

  std::atomic<uint64_t> seats_{0};
  std::atomic<uint32_t> round_{0};
  Work work_ = nullptr;
  void* context_ = nullptr;
  int made_ = 0;
};

struct Idle {
  std::mutex mutex;
  std::vector<Pool*> pools;
};

std::atomic<Idle*> idle{nullptr};

Idle& idle_pools() {
  Idle* mine = idle.load(std::memory_order_acquire);
  if (mine != nullptr) return *mine;
  auto* made = new Idle;
  if (idle.compare_exchange_strong(mine, made, std::memory_order_acq_rel)) return *made;
  delete made;
  return *mine;
}

int ask_cores() noexcept {
#ifdef __linux__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
#endif
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

const int cores_when_loaded = ask_cores();

// The first number of a variable, or 0.
int number_of(const char* name) {
  const char* text = std::getenv(name);
  const long number = text == nullptr ? 0 : std::strtol(text, nullptr, 10);
  return static_cast<int>(std::clamp(number, 0L, 32767L));
}

}  // namespace

int pool_cores() { return cores_when_loaded; }

int pool_threads() {
  static const int threads = [] {
    const int asked = number_of("OMP_NUM_THREADS"), limit = number_of("OMP_THREAD_LIMIT");
    const int wanted = asked > 0 ? asked : pool_cores();
    return limit > 0 ? std::min(wanted, limit) : wanted;
  }();
  return threads;
}

void run_in_pool(int workers, Work work, void* context) {
  if (workers <= 1 || in_team) return work(context, 0);
  Idle& others = idle_pools();
  Pool* pool = nullptr;
  {
    const std::lock_guard lock(others.mutex);
    if (!others.pools.empty()) {
      pool = others.pools.back();
      others.pools.pop_back();
    }
  }
  if (pool == nullptr) pool = new Pool;
  pool->run(std::min(workers, 32767), work, context);
  const std::lock_guard lock(others.mutex);
  others.pools.push_back(pool);
}

void forget_pools() noexcept {
  idle.store(nullptr, std::memory_order_release);
  in_team = false;
}

}  // namespace relpos
