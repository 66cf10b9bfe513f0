// Scratch is laid out first and allocated second: what takes its memory from a Workspace that only
// counts says how much it would take. So workspace_bytes() is what the constructors ask for.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/buffer.h"
#include "base/zeros.h"

namespace relpos {

class Workspace {
 public:
  enum Mode { kAllocates, kCounts };
  explicit Workspace(Mode mode = kAllocates) : mode_(mode) {}

  // n uninitialised numbers; none where this only counts.
  template <typename T>
  Buffer<T> take(int64_t n) {
    bytes_ += std::max<int64_t>(n, 0) * static_cast<int64_t>(sizeof(T));
    return Buffer<T>(mode_ == kCounts ? 0 : n);
  }
  template <typename T>
  Buffer<T> zeros(int64_t n) {
    Buffer<T> taken = take<T>(n);
    fill_zeros(taken.get(), taken.size());
    return taken;
  }
  int64_t bytes() const noexcept { return bytes_; }  // asked for so far

 private:
  Mode mode_;
  int64_t bytes_ = 0;
};

}  // namespace relpos
