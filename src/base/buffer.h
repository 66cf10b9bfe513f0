// Scratch memory aligned to a cache line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "relpos/export.h"

RELPOS_EXPORT_BEGIN
namespace relpos {

// Blocks of 4 KiB and more are kept for the next call, up to this much in the whole process: fresh
// pages cost 2 % of a call of 2048 tokens, malloc a quarter of a call of 12.
inline constexpr size_t kKeptBytes = size_t{32} << 20;

namespace detail {
// At least `bytes` of memory, and the size that give_memory must hear.
struct Memory {
  void* data;
  size_t bytes;
};
Memory take_memory(size_t bytes);  // throws std::bad_alloc
void give_memory(Memory memory) noexcept;
size_t kept_bytes() noexcept;      // of blocks that nobody uses
int64_t blocks_reused() noexcept;  // so far
}  // namespace detail

// Uninitialised floats (or other trivial T); size 0 holds nothing.
template <typename T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(int64_t size) : size_(size) {
    if (size <= 0) return;
    const detail::Memory memory = detail::take_memory(static_cast<size_t>(size) * sizeof(T));
    data_ = {static_cast<T*>(memory.data), Give{memory.bytes}};
  }
  T* get() const noexcept { return data_.get(); }
  T& operator[](int64_t i) const noexcept { return data_.get()[i]; }
  int64_t size() const noexcept { return size_; }

 private:
  struct Give {
    size_t bytes = 0;
    void operator()(T* data) const noexcept { detail::give_memory({data, bytes}); }
  };
  std::unique_ptr<T, Give> data_;
  int64_t size_ = 0;
};

// Row lengths are multiples of the widest vector, in floats.
inline constexpr int64_t kLanes = 16;

constexpr int64_t round_up(int64_t n, int64_t multiple) noexcept {
  return (n + multiple - 1) / multiple * multiple;
}

}  // namespace relpos
RELPOS_EXPORT_END
