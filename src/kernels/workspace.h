// Scratch memory of a call. A Workspace can also count without allocating, so that workspace_bytes()
// constructs the same objects and returns how much memory they request.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/buffer.h"

namespace relpos {

class Workspace {
 public:
  enum Mode { kAllocates, kCounts };
  explicit Workspace(Mode mode = kAllocates) : mode_(mode) {}

  // n uninitialised numbers, or none if this Workspace only counts.
  template <typename T>
  Buffer<T> take(int64_t n) {
    bytes_ += std::max<int64_t>(n, 0) * static_cast<int64_t>(sizeof(T));
    return Buffer<T>(mode_ == kCounts ? 0 : n);
  }
  template <typename T>
  Buffer<T> zeros(int64_t n) {
    Buffer<T> taken = take<T>(n);
    std::fill_n(taken.get(), taken.size(), T{});
    return taken;
  }
  int64_t bytes() const noexcept { return bytes_; }  // asked for so far

 private:
  Mode mode_;
  int64_t bytes_ = 0;
};

}  // namespace relpos
