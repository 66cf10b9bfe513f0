#include "base/buffer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "base/sanitized.h"
#include "testing/allocations.h"

namespace relpos {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr bool kKeeps = !kSanitizesMemory;

TEST(Buffer, IsAlignedToALineAndLargeOnesToAHugePage) {
  for (const int64_t bytes : {int64_t{4}, int64_t{1000}, 100 * kMiB / 1024, kMiB, 5 * kMiB}) {
    const Buffer<float> buffer(bytes / 4);
    const auto address = reinterpret_cast<uintptr_t>(buffer.get());
    EXPECT_EQ(address % 64, 0U) << bytes;
    EXPECT_EQ(bytes > 4 * kMiB ? address % (2 * kMiB) : 0U, 0U) << bytes;
    std::fill_n(buffer.get(), buffer.size(), 1.0f);  // all of it is there
  }
  EXPECT_EQ(Buffer<float>(0).get(), nullptr);
}

TEST(Buffer, ALargeBlockServesTheNextOfItsSize) {
  Buffer<float> first(kMiB);
  const float* memory = first.get();
  first = Buffer<float>();
  const Buffer<float> other(2 * kMiB), again(kMiB - 1);
  if (kKeeps) {
    EXPECT_EQ(again.get(), memory);
  }
  EXPECT_NE(other.get(), memory);
}

TEST(Buffer, KeepsNoMoreThanItSays) {
  for (int n = 0; n < 3; ++n) {
    std::vector<Buffer<char>> many;
    for (int64_t size = 1; size < 9; ++size) many.emplace_back(size * 3 * kMiB);
    many.emplace_back(static_cast<int64_t>(kKeptBytes) + kMiB);  // too large to keep
  }
  EXPECT_LE(detail::kept_bytes(), kKeptBytes);
  EXPECT_EQ(detail::kept_bytes() > kKeptBytes / 2, kKeeps);
}

TEST(Buffer, WhereMemoryIsShortKeptBlocksAreFreed) {
  if (!allocations::kCanFail) GTEST_SKIP() << "the sanitizer's operator new does not fail";
  Buffer<char> kept(3 * kMiB);
  kept = Buffer<char>();
  ASSERT_GT(detail::kept_bytes(), 0U);
  const allocations::Failing failing(1, allocations::Failing::kOne);
  const Buffer<char> next(7 * kMiB);  // no test keeps one of this size
  EXPECT_TRUE(allocations::Failing::any());
  EXPECT_NE(next.get(), nullptr);
  EXPECT_EQ(detail::kept_bytes(), 0U);
}

TEST(Buffer, ThreadsNeverShareABlock) {
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (size_t worker = 0; worker < wrong.size(); ++worker) {
    threads.emplace_back([&wrong, worker] {
      for (int n = 0; n < 300; ++n) {
        const Buffer<int> own(kMiB / 16 * (1 + n % 3));
        std::fill_n(own.get(), own.size(), static_cast<int>(worker));
        std::this_thread::yield();
        const auto mine = std::count(own.get(), own.get() + own.size(), static_cast<int>(worker));
        wrong[worker] += mine == own.size() ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

}  // namespace
}  // namespace relpos
