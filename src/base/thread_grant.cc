#include "base/thread_grant.h"

#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdlib>
#include <memory>
#include <new>

namespace relpos {
namespace {

// libgomp takes this for a team besides the stacks: its bookkeeping, and what threads allocate first.
constexpr size_t kTeamBytes = size_t{1} << 16, kThreadBytes = size_t{1} << 14;

// OMP_STACKSIZE as libgomp reads it, kilobytes where no unit is given; 0 where it says nothing.
size_t openmp_stack_bytes() {
  const char* text = std::getenv("OMP_STACKSIZE");
  if (text == nullptr) text = std::getenv("GOMP_STACKSIZE");
  if (text == nullptr) return 0;
  char* end = nullptr;
  const unsigned long long number = std::strtoull(text, &end, 10);
  while (std::isspace(static_cast<unsigned char>(*end)) != 0) ++end;
  const int unit = std::toupper(static_cast<unsigned char>(*end));
  const int shift = unit == 'B' ? 0 : unit == 'M' ? 20 : unit == 'G' ? 30 : 10;
  size_t bytes = 0;
  if (end == text || __builtin_mul_overflow(number, size_t{1} << shift, &bytes)) return 0;
  return bytes;
}

// Threads that wait until all are there.
class Rehearsal {
 public:
  explicit Rehearsal(int wanted) : threads_(new (std::nothrow) pthread_t[room(wanted)]) {
    const std::unique_ptr<char[]> team(
        new (std::nothrow) char[kTeamBytes + room(wanted) * kThreadBytes]);
    if (threads_ == nullptr || team == nullptr || pthread_mutex_lock(&gate_) != 0) return;
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) == 0) {
      const size_t stack = openmp_stack_bytes();
      if (stack > 0) pthread_attr_setstacksize(&attributes, stack);
      while (made_ < wanted &&
             pthread_create(&threads_[static_cast<size_t>(made_)], &attributes, wait, this) == 0) {
        ++made_;
      }
      pthread_attr_destroy(&attributes);
    }
    pthread_mutex_unlock(&gate_);
    for (int n = 0; n < made_; ++n) pthread_join(threads_[static_cast<size_t>(n)], nullptr);
  }
  int made() const { return made_; }

 private:
  static size_t room(int wanted) { return static_cast<size_t>(std::max(wanted, 1)); }
  static void* wait(void* self) {
    pthread_mutex_t* gate = &static_cast<Rehearsal*>(self)->gate_;
    pthread_mutex_lock(gate);
    pthread_mutex_unlock(gate);
    return nullptr;
  }

  pthread_mutex_t gate_ = PTHREAD_MUTEX_INITIALIZER;
  std::unique_ptr<pthread_t[]> threads_;
  int made_ = 0;
};

struct Limits {
  rlim_t threads = RLIM_INFINITY, memory = RLIM_INFINITY;
  bool operator==(const Limits&) const = default;
};

Limits limits_now() {
  Limits limits;
  rlimit limit{};
  if (getrlimit(RLIMIT_NPROC, &limit) == 0) limits.threads = limit.rlim_cur;
  if (getrlimit(RLIMIT_AS, &limit) == 0) limits.memory = limit.rlim_cur;
  return limits;
}

}  // namespace

int granted_threads(int wanted) {
  // libgomp keeps one pool for each thread that starts teams.
  thread_local int granted = 1;
  thread_local Limits of;
  if (wanted <= 1) return 1;
  const Limits limits = limits_now();
  if (wanted > granted || limits != of || limits.memory != RLIM_INFINITY) {
    granted = 1 + Rehearsal(wanted - 1).made();
    of = limits;
  }
  return std::min(wanted, granted);
}

}  // namespace relpos
