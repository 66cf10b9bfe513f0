// How a caller ends a long call.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>

#include "relpos/export.h"

RELPOS_EXPORT_BEGIN
namespace relpos {

// Ends a long call. `requested` may be set from any thread. `poll`, if given, is called on the calling
// thread about every `interval`; it cancels by returning true, and the call throws what it throws.
struct CancelToken {
  std::atomic<bool> requested{false};
  std::function<bool()> poll;
  std::chrono::milliseconds interval{50};
};

}  // namespace relpos
RELPOS_EXPORT_END
