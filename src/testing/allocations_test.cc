#include "testing/allocations.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <vector>

namespace relpos::allocations {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
std::atomic<int64_t> count{0}, alive{0}, first{kNever}, end{kNever};
std::atomic<bool> failed{false};

}  // namespace

int64_t made() noexcept { return count; }
int64_t live() noexcept { return alive; }

Failing::Failing(int64_t n, Which which) noexcept {
  failed = false;
  end = which == kOne ? count + n + 1 : kNever;
  first = count + n;
}
Failing::~Failing() { first = kNever; }
bool Failing::any() noexcept { return failed; }

}  // namespace relpos::allocations

#if defined(RELPOS_ADDRESS_SANITIZER) || defined(RELPOS_MEMORY_SANITIZER) || \
    defined(RELPOS_THREAD_SANITIZER)
// Their own operator new stays in place.
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*)(const volatile void*, size_t),
                                                         void (*)(const volatile void*));
namespace {
const int installed = __sanitizer_install_malloc_and_free_hooks(
    [](const volatile void*, size_t) { relpos::allocations::count.fetch_add(1); },
    [](const volatile void*) {});
}  // namespace
#else
namespace {

void freed(void* memory) noexcept {
  if (memory != nullptr) relpos::allocations::alive.fetch_sub(1, std::memory_order_relaxed);
  std::free(memory);
}

}  // namespace

// Not inlined: gcc would take free() of what `new` gave for a mistake.
#define RELPOS_REPLACES [[gnu::noinline]]
RELPOS_REPLACES void* operator new(size_t bytes, std::align_val_t align) {
  namespace a = relpos::allocations;
  const int64_t now = a::count.fetch_add(1, std::memory_order_relaxed);
  if (now + 1 >= a::first && now + 1 < a::end) {
    a::failed = true;
    throw std::bad_alloc();
  }
  const auto to = static_cast<size_t>(align);
  void* memory = std::aligned_alloc(to, (bytes + to - 1) / to * to);
  if (memory == nullptr) throw std::bad_alloc();
  a::alive.fetch_add(1, std::memory_order_relaxed);
  return memory;
}
RELPOS_REPLACES void* operator new(size_t bytes) {
  return operator new(bytes, std::align_val_t{__STDCPP_DEFAULT_NEW_ALIGNMENT__});
}
RELPOS_REPLACES void operator delete(void* memory) noexcept { freed(memory); }
RELPOS_REPLACES void operator delete(void* memory, size_t) noexcept { freed(memory); }
RELPOS_REPLACES void operator delete(void* memory, std::align_val_t) noexcept { freed(memory); }
RELPOS_REPLACES void operator delete(void* memory, size_t, std::align_val_t) noexcept {
  freed(memory);
}
#undef RELPOS_REPLACES
#endif

namespace relpos::allocations {
namespace {

TEST(Allocations, FailWhereTheyAreTold) {
  if (!kCanFail) GTEST_SKIP() << "the sanitizer's operator new does not fail";
  std::vector<std::unique_ptr<double>> held(4);
  const int64_t before = live();
  const auto fails = [&](size_t n) {
    try {
      held[n] = std::make_unique<double>(1.0);
      return false;
    } catch (const std::bad_alloc&) {
      return true;
    }
  };
  {
    const Failing second(2, Failing::kOne);
    const bool first_one = fails(0), second_one = fails(1), third_one = fails(2);
    EXPECT_FALSE(first_one);
    EXPECT_TRUE(second_one);
    EXPECT_FALSE(third_one);
    EXPECT_TRUE(Failing::any());
  }
  {
    const Failing all(1, Failing::kAllFrom);
    const bool one = fails(1), next = fails(3);
    EXPECT_TRUE(one && next);
  }
  EXPECT_FALSE(fails(3));
  EXPECT_EQ(live(), before + 3);
  held.clear();
  EXPECT_EQ(live(), before);
}

}  // namespace
}  // namespace relpos::allocations
