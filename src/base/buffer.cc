#include "base/buffer.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <mutex>
#include <new>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include "base/sanitized.h"

namespace relpos::detail {
namespace {

constexpr std::align_val_t kLine{64}, kHugePage{size_t{2} << 20};
constexpr size_t kLarge = size_t{4} << 10;      // below, malloc is as fast
constexpr size_t kHugeBlock = size_t{4} << 20;  // from here on, huge pages take fewer faults

std::align_val_t alignment(size_t bytes) { return bytes < kHugeBlock ? kLine : kHugePage; }

void release(Memory memory) noexcept { ::operator delete(memory.data, alignment(memory.bytes)); }

// Free blocks, oldest first. A lock that is taken is not waited for: the block then comes from, or goes
// to, the allocator.
class Kept {
 public:
  void lock() noexcept { mutex_.lock(); }
  void unlock() noexcept { mutex_.unlock(); }
  // A block of just this size; data null: none.
  Memory take(size_t bytes) noexcept {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return {};
    for (size_t n = count_; n-- > 0;) {  // the youngest may still be in a cache
      if (blocks_[n].bytes == bytes) return remove(n);
    }
    return {};
  }
  void give(Memory memory) noexcept {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) {
      release(memory);
      return;
    }
    while (count_ == blocks_.size() || bytes_ + memory.bytes > kKeptBytes) release(remove(0));
    blocks_[count_++] = memory;
    bytes_ += memory.bytes;
  }

  void drop() noexcept {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    while (lock && count_ > 0) release(remove(0));
  }
  size_t bytes() noexcept {
    const std::lock_guard lock(mutex_);
    return bytes_;
  }

 private:
  Memory remove(size_t n) noexcept {
    const Memory memory = blocks_[n];
    std::move(blocks_.begin() + n + 1, blocks_.begin() + count_, blocks_.begin() + n);
    --count_;
    bytes_ -= memory.bytes;
    return memory;
  }

  std::mutex mutex_;
  std::array<Memory, 256> blocks_{};
  size_t count_ = 0, bytes_ = 0;
};

// Never destroyed: a static object elsewhere may hold a Buffer to the end.
Kept& kept() {
  static Kept& blocks = *new Kept;
  return blocks;
}

void lock_kept() noexcept { kept().lock(); }
void unlock_kept() noexcept { kept().unlock(); }

// Nobody else holds the lock while the process forks, so that it is free in the child.
[[maybe_unused]] const int at_fork_registered = pthread_atfork(lock_kept, unlock_kept, unlock_kept);

Memory allocate(size_t bytes) {
  void* data = ::operator new(bytes, alignment(bytes), std::nothrow);
  if (data == nullptr) {
    kept().drop();
    data = ::operator new(bytes, alignment(bytes));
  }
#ifdef __linux__
  if (bytes >= kHugeBlock) madvise(data, bytes, MADV_HUGEPAGE);  // refused: small pages serve
#endif
  return {data, bytes};
}

constexpr bool keeps(size_t bytes) {
  return !kSanitizesMemory && bytes >= kLarge && bytes <= kKeptBytes;
}

std::atomic<int64_t> reused{0};

}  // namespace

Memory take_memory(size_t bytes) {
  if (!keeps(bytes)) return allocate(bytes);
  // Sizes in steps of an eighth, so that calls of similar lengths share blocks.
  const size_t step = std::bit_floor(bytes) / 8, size = (bytes + step - 1) / step * step;
  const Memory memory = kept().take(size);
  if (memory.data == nullptr) return allocate(size);
  reused.fetch_add(1, std::memory_order_relaxed);
  return memory;
}

void give_memory(Memory memory) noexcept {
  if (keeps(memory.bytes)) {
    kept().give(memory);
  } else {
    release(memory);
  }
}

size_t kept_bytes() noexcept { return kept().bytes(); }

int64_t blocks_reused() noexcept { return reused.load(std::memory_order_relaxed); }

}  // namespace relpos::detail
