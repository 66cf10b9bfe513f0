// Teams of threads: how many there are, what they throw, and the floating-point mode they compute in.
#include "base/parallel.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/loaded_openmp.h"
#include "base/pool.h"
#include "base/sanitized.h"
#include "base/team.h"
#include "base/thread_grant.h"
#include "relpos/error.h"

namespace relpos {
namespace {

TEST(Threads, AreAtMostTheCores) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  EXPECT_EQ(thread_count(1), 1);
  EXPECT_GE(thread_count(0), 1);
  for (const int asked : {0, 2, 60000, 100000, INT_MAX}) EXPECT_LE(thread_count(asked), cores);
}

// Whether a team of `threads` does each of `tasks` exactly once.
bool all_done_once(int64_t tasks, int threads) {
  std::vector<std::atomic<int>> done(static_cast<size_t>(tasks));
  Stopper stopper(nullptr);
  parallel_for(tasks, threads, stopper,
               [&](int64_t task, int) { done[static_cast<size_t>(task)].fetch_add(1); });
  return std::all_of(done.begin(), done.end(), [](const auto& n) { return n.load() == 1; });
}

void limit(__rlimit_resource_t resource, rlim_t value) {
  const rlimit both{value, value};
  if (setrlimit(resource, &both) != 0) std::_Exit(3);
}

int64_t address_space() {
  long pages = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr || std::fscanf(file, "%ld", &pages) != 1) std::_Exit(4);
  std::fclose(file);
  return pages * sysconf(_SC_PAGESIZE);
}

constexpr int kMany = 64;

// The tests below end their process, so that each has one of its own.
class LimitedThreads : public testing::Test {
 protected:
  void SetUp() override {
    if (kSanitized) GTEST_SKIP() << "a sanitizer takes address space and threads of its own";
    GTEST_FLAG_SET(death_test_style, "threadsafe");
  }
  // That a process computes with fewer than kMany once it has limited itself.
  static void expect_fewer(void (*limit_process)()) {
    const auto body = [&] {
      limit_process();
      if (granted_threads(kMany) >= kMany) std::_Exit(6);
      std::_Exit(all_done_once(1000, kMany) && all_done_once(1000, kMany) ? 0 : 5);
    };
    EXPECT_EXIT(body(), testing::ExitedWithCode(0), "");
  }
};

TEST_F(LimitedThreads, OfAnAddressSpaceComputeWithFewer) {
  expect_fewer(
      [] { limit(RLIMIT_AS, static_cast<rlim_t>(address_space() + (int64_t{40} << 20))); });
}

TEST_F(LimitedThreads, OfAUserComputeWithFewer) {
  expect_fewer([] {
    limit(RLIMIT_NPROC, 3);
    constexpr uid_t kNobody = 65534;
    if (geteuid() == 0 && setuid(kNobody) != 0) std::_Exit(7);  // root has no such limit
  });
}

TEST_F(LimitedThreads, WithStacksThatNobodyGrantsComputeAlone) {
  const auto body = [] {
    setenv("OMP_STACKSIZE", "1000000G", 1);
    if (granted_threads(kMany) != 1) std::_Exit(6);
    std::_Exit(all_done_once(1000, 1) ? 0 : 5);
  };
  EXPECT_EXIT(body(), testing::ExitedWithCode(0), "");
}

// Whether a team has `threads` threads at one time: each task waits until all have begun, or 10 s.
bool all_at_once(int threads) {
  std::atomic<int> begun{0};
  std::atomic<bool> late{false};
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  Stopper stopper(nullptr);
  parallel_for(threads, threads, stopper, [&](int64_t, int) {
    ++begun;
    while (begun < threads && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    if (begun < threads) late = true;
  });
  return !late;
}

// Ends with the status of f() in a forked child, or with that of a signal if it hangs.
template <typename F>
int in_child(const F& f) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(600);
    std::_Exit(f());
  }
  int status = -1;
  return waitpid(child, &status, 0) == child ? status : -1;
}

TEST(ForkedChild, HasItsThreads) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's threads do not survive a fork";
  const int before = thread_count(0);
  ASSERT_TRUE(all_at_once(2));
  const auto child = [&] {
    const auto grandchild = [] { return all_at_once(2) ? 0 : 1; };
    if (!in_forked_child() || thread_count(0) != before) return 2;
    if (!all_at_once(2) || !all_at_once(5) || !all_done_once(1000, 4)) return 3;
    return in_child(grandchild) == 0 ? 0 : 4;
  };
  EXPECT_EQ(in_child(child), 0);
  EXPECT_FALSE(in_forked_child());
  EXPECT_TRUE(all_at_once(2));
}

TEST(ForkedChild, ComputesWhereAThreadOfItsParentDid) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's threads do not survive a fork";
  std::atomic<bool> done{false};
  std::atomic<bool> good{true};
  std::thread parent([&] {
    while (!done) good = all_done_once(100, 2) && good;
  });
  for (int round = 0; round < 20; ++round) {
    EXPECT_EQ(in_child([] { return all_at_once(2) ? 0 : 1; }), 0);
  }
  done = true;
  parent.join();
  EXPECT_TRUE(good);
}

// The pool of our own, whatever this build uses.
TEST(OwnPool, DoesEachTaskOnceAndKeepsItsThreads) {
  std::atomic<int> wrong{0};
  for (int round = 0; round < 2000; ++round) {
    std::atomic<int> sum{0}, next{0};
    struct Sum {
      std::atomic<int>&sum, &next;
    } both{sum, next};
    const auto add = [](void* data, int) {
      const Sum& to = *static_cast<Sum*>(data);
      for (int n = to.next++; n < 100; n = to.next++) to.sum += n;
    };
    run_in_pool(1 + round % 4, add, &both);
    wrong += sum != 4950;
  }
  EXPECT_EQ(wrong, 0);
}

TEST(OwnPool, ServesSeveralCallersAtATime) {
  std::atomic<int> done{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 300; ++round) {
        const auto count = [](void* data, int worker) {
          // Alone within a worker.
          const auto inner = [](void* which, int of) { *static_cast<int*>(which) += of + 1; };
          int sum = 0;
          run_in_pool(4, inner, &sum);
          if (worker == 0 && sum == 1) ++*static_cast<std::atomic<int>*>(data);
        };
        run_in_pool(3, count, &done);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(done, 900);
}

TEST(OwnPool, HasWorkersWithNumbersOfTheirOwn) {
  std::atomic<int> seen[4] = {};
  const auto see = [](void* data, int worker) {
    auto* all = static_cast<std::atomic<int>*>(data);
    ++all[worker];
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (std::chrono::steady_clock::now() < end &&
           std::any_of(all, all + 4, [](const auto& n) { return n == 0; })) {
      std::this_thread::yield();
    }
  };
  run_in_pool(4, see, seen);
  for (const auto& n : seen) EXPECT_EQ(n, 1);
}

TEST(LoadedOpenMP, IsFoundOnceItIsInTheProcess) {
  if (kSanitized) GTEST_SKIP() << "ThreadSanitizer cannot see into libgomp";
  if (dlopen("libgomp.so.1", RTLD_NOW | RTLD_LOCAL) == nullptr) GTEST_SKIP() << dlerror();
  const LoadedOpenMP* openmp = loaded_openmp();
  ASSERT_NE(openmp, nullptr);
  EXPECT_EQ(openmp, loaded_openmp());
  EXPECT_NE(openmp->title.find("libgomp"), std::string::npos) << openmp->title;
  EXPECT_GE(openmp->cores, 1);
  EXPECT_GE(openmp->max_threads(), 1);
  std::atomic<int> entered{0};
  const auto enter = [](void* data) { ++*static_cast<std::atomic<int>*>(data); };
  openmp->parallel(enter, &entered, 3, 0);
  EXPECT_EQ(entered, 3);
  EXPECT_TRUE(all_done_once(1000, 2));
  EXPECT_EQ(std::string(thread_backend()).rfind("OpenMP", 0), 0u) << thread_backend();
}

// On so many threads.
class Tasks : public testing::TestWithParam<int> {
 protected:
  const int threads = GetParam();
};

TEST_P(Tasks, ThrowToTheCaller) {
  // A worker that has thrown may wait for a core: the others' tasks take seconds, unless they are stopped.
  constexpr int kTasks = 20000;
  for (int round = 0; round < 50; ++round) {
    Stopper stopper(nullptr);
    std::atomic<int> after{0};
    std::string thrown;
    try {
      parallel_for(kTasks, threads, stopper, [&](int64_t task, int) {
        if (task == 3 || task == 5) throw std::runtime_error(std::to_string(task));
        if (task <= 5) return;
        ++after;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      });
    } catch (const std::runtime_error& error) {
      thrown = error.what();
    }
    EXPECT_EQ(thrown, "3");
    ASSERT_LT(after, kTasks / 2) << "the others went on";
  }
}

TEST_P(Tasks, PassOnWhatAPollThrows) {
  CancelToken token;
  token.poll = []() -> bool { throw std::runtime_error("of the poll"); };
  Stopper stopper(&token);
  EXPECT_THROW(
      parallel_for(100000, threads, stopper,
                   [](int64_t, int) { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }),
      std::runtime_error);
}

TEST_P(Tasks, AskTheCallOfTheThreadThatStartedThem) {
  constexpr int64_t kTicks = 100'000'000;
  CancelToken token;
  const CallScope scope(&token);
  Stopper stopper(nullptr);
  std::atomic<int> whole{0};
  auto tick_on = [&](int64_t, int) {
    CancelTicks tick;
    for (int64_t n = 0; n < kTicks; ++n) {
      tick();
      if (n == 10000) token.requested = true;
    }
    ++whole;
  };
  EXPECT_THROW(
      {
        parallel_for(threads, threads, stopper, tick_on);
        check_cancelled();
      },
      Error);
  EXPECT_EQ(whole, 0) << "tasks that ran to their ends";
}

TEST_P(Tasks, EndWhereAnotherHasThrown) {
  Stopper stopper(nullptr);
  std::atomic<bool> thrown{false};
  std::atomic<int> begun{0}, whole{0};
  auto task = [&](int64_t n, int) {
    ++begun;
    if (n == 0) {  // after the others have begun, where there are others
      const auto alone = std::chrono::steady_clock::now() + std::chrono::seconds(5);
      while (begun < std::min(threads, thread_count(0)) &&
             std::chrono::steady_clock::now() < alone) {
        std::this_thread::yield();
      }
      thrown = true;
      throw std::runtime_error("of a task");
    }
    while (!thrown) std::this_thread::yield();
    CancelTicks tick;
    for (int64_t step = 0; step < 1'000'000'000; ++step) tick();
    ++whole;
  };
  EXPECT_THROW(parallel_for(threads, threads, stopper, task), std::runtime_error);
  EXPECT_EQ(whole, 0) << "tasks that ran to their ends";
}

TEST(TwoTasks, ArePolledForByACallerThatHasNoneLeft) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point end = Clock::now() + std::chrono::seconds(60);
  CancelToken token;
  token.poll = [] { return true; };
  Stopper stopper(&token);
  std::atomic<int> begun{0};
  std::atomic<bool> waited{false};
  parallel_for(2, 2, stopper, [&](int64_t, int worker) {
    ++begun;
    if (worker == 0) {  // until the other one is at its task, where there is another one
      const Clock::time_point alone = Clock::now() + std::chrono::seconds(10);
      while (begun < 2 && Clock::now() < alone) std::this_thread::yield();
      return;
    }
    while (!token.requested && Clock::now() < end) std::this_thread::yield();
    waited = !token.requested;
  });
  EXPECT_FALSE(waited) << "nobody polled while a task ran";
}

#if defined(__SSE__)
constexpr FloatControl kUpwards = kKeepDenormals | 0x4000;
#elif defined(__aarch64__)
constexpr FloatControl kUpwards = FloatControl{1} << 22;
#else
constexpr FloatControl kUpwards = 0;
#endif

TEST_P(Tasks, ComputeInOneFloatingPointModeAndGiveBackTheCallers) {
  for (const FloatControl callers : {kFlushDenormals, kUpwards, kKeepDenormals}) {
    const FloatMode mode(callers);
    std::atomic<int> wrong{0};
    Stopper stopper(nullptr);
    parallel_for(1000, threads, stopper,
                 [&](int64_t, int) { wrong += read_float_control() != kKeepDenormals; });
    EXPECT_EQ(wrong, 0) << threads;
    EXPECT_EQ(read_float_control(), callers);
    EXPECT_THROW(parallel_for(10, threads, stopper, [](int64_t, int) { throw 1; }), int);
    EXPECT_EQ(read_float_control(), callers) << "after a throw";
  }
}

INSTANTIATE_TEST_SUITE_P(Of, Tasks, testing::Values(1, 2, 4));

TEST(Calls, ComputeInOneFloatingPointModeAndPollInTheCallers) {
  const FloatMode mode(kFlushDenormals);
  {
    CancelToken token;
    FloatControl of_poll = 0;
    token.poll = [&of_poll] {
      of_poll = read_float_control();
      return true;
    };
    const CallScope scope(&token);
    const CallScope inner(nullptr);
    EXPECT_EQ(read_float_control(), kKeepDenormals);
    const auto wait = [] {
      while (true) check_cancelled();
    };
    EXPECT_THROW(wait(), Error);
    EXPECT_EQ(of_poll, kFlushDenormals);
    EXPECT_EQ(read_float_control(), kKeepDenormals);
  }
  EXPECT_EQ(read_float_control(), kFlushDenormals);
}

}  // namespace
}  // namespace relpos
