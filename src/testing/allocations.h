// Allocations of the test program by operator new, which allocations_test.cc replaces: their number, and
// those that shall fail.
#pragma once

#include <cstdint>

#include "base/sanitized.h"

namespace relpos::allocations {

int64_t made() noexcept;  // so far, those that failed among them

// Sanitizers keep their own operator new, so that under them nothing fails, and live() is 0.
inline constexpr bool kCanFail = !kSanitized;
int64_t live() noexcept;

// While one lives, allocations throw std::bad_alloc: the n-th from here on, or that and all later ones.
class Failing {
 public:
  enum Which { kOne, kAllFrom };
  Failing(int64_t n, Which which) noexcept;
  ~Failing();
  Failing(const Failing&) = delete;
  Failing& operator=(const Failing&) = delete;
  static bool any() noexcept;  // whether one failed by the newest of these
};

}  // namespace relpos::allocations
