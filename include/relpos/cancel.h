// How a caller ends a long call.
#pragma once

#include <atomic>
#include <functional>

namespace relpos {

// Ends a long call. `requested` may be set from any thread; `poll`, if given, is asked on the calling
// thread about every 50 ms and cancels by returning true; what it throws comes out of the call.
struct CancelToken {
  std::atomic<bool> requested{false};
  std::function<bool()> poll;
};

}  // namespace relpos
