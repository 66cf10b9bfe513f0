#include "cli/files/signals.h"

#include <sched.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>

#include "relpos/error.h"

namespace relpos::cli {
namespace {

constexpr std::array<int, 5> kEnding{SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGQUIT};

CancelToken& token() {
  static CancelToken instance;
  return instance;
}

Leftovers& leftovers() {
  static Leftovers& instance = *new Leftovers;  // a signal may come while the process ends
  return instance;
}

std::atomic<bool> cancels{false};  // Ctrl-C sets the token first
std::atomic<bool> locked{false};   // who sets it owns leftovers()
std::atomic<int> pending{0};       // a signal that found them locked
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free,
              "used in a signal handler");

void remove_leftovers() {
  for (const std::string& file : leftovers().files) ::unlink(file.c_str());
  for (size_t n = leftovers().folders.size(); n-- > 0;) ::rmdir(leftovers().folders[n].c_str());
}

// Runs on any thread, so the owner of the lock may go on meanwhile.
extern "C" void on_signal(int signal) {
  if (signal == SIGINT && cancels.load() && !token().requested.exchange(true)) return;
  pending.store(signal);
  if (locked.exchange(true)) return;
  remove_leftovers();
  std::signal(signal, SIG_DFL);
  ::raise(signal);
}

void listen(int signal) {
  struct sigaction before{};
  if (sigaction(signal, nullptr, &before) != 0 || before.sa_handler == SIG_IGN) return;
  struct sigaction action{};
  action.sa_handler = on_signal;
  sigaction(signal, &action, nullptr);
}

}  // namespace

CancelToken& cancel_on_interrupt() {
  CancelToken& instance = token();  // both constructed before the handler can run
  leftovers();
  cancels.store(true);
  listen(SIGINT);
  return instance;
}

void throw_if_interrupted() {
  if (token().requested.load()) throw_error(ErrorKind::kCancelled, "interrupted");
}

LeftoversLock::LeftoversLock() {
  token();
  leftovers();
  for (const int signal : kEnding) listen(signal);
  while (locked.exchange(true)) ::sched_yield();  // a handler has it, and the process ends
}

LeftoversLock::~LeftoversLock() {
  locked.store(false);
  if (const int signal = pending.load(); signal != 0) ::raise(signal);
}

Leftovers& LeftoversLock::list() const { return leftovers(); }

}  // namespace relpos::cli
