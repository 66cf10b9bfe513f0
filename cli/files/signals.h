// How the tool stops when it is told to. A signal that was ignored when the tool started
// (nohup, a shell's `&`) stays ignored.
#pragma once

#include <string>
#include <vector>

#include "relpos/cancel.h"

namespace relpos::cli {

// From the first call on, Ctrl-C sets the token; a second Ctrl-C ends the process.
CancelToken& cancel_on_interrupt();
void throw_if_interrupted();

// Files that must not outlive the process: while a LeftoversLock is held, no signal ends it, so that the
// lists and the files change together.
struct Leftovers {
  std::vector<std::string> files, folders;  // removed in this order, the folders last to first
};

class LeftoversLock {
 public:
  LeftoversLock();  // from the first one on, signals that end the process remove the leftovers first
  ~LeftoversLock();  // a signal that came in between ends the process here
  LeftoversLock(const LeftoversLock&) = delete;
  LeftoversLock& operator=(const LeftoversLock&) = delete;

  Leftovers& list() const;
};

}  // namespace relpos::cli
