// How often a call asks its token whether to stop.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include "relpos/cancel.h"

namespace relpos {

// The questions of a call on one thread: the token is polled at each.
inline int64_t questions(const std::function<void(CancelToken*)>& call) {
  CancelToken token;
  int64_t asked = 0;
  token.interval = std::chrono::milliseconds(0);
  token.poll = [&asked] {
    ++asked;
    return false;
  };
  call(&token);
  return asked;
}

}  // namespace relpos
