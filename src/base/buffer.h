// Scratch memory aligned to a cache line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace relpos {

// Uninitialised floats (or other trivial T); size 0 holds nothing.
template <typename T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(int64_t size) : size_(size) {
    if (size > 0) {
      data_.reset(static_cast<T*>(
          ::operator new(static_cast<size_t>(size) * sizeof(T), std::align_val_t{64})));
    }
  }
  T* get() const noexcept { return data_.get(); }
  T& operator[](int64_t i) const noexcept { return data_.get()[i]; }
  int64_t size() const noexcept { return size_; }

 private:
  struct Free {
    void operator()(T* p) const noexcept { ::operator delete(p, std::align_val_t{64}); }
  };
  std::unique_ptr<T, Free> data_;
  int64_t size_ = 0;
};

constexpr int64_t round_up(int64_t n, int64_t multiple) noexcept {
  return (n + multiple - 1) / multiple * multiple;
}

}  // namespace relpos
