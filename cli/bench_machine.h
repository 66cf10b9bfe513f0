// What the machine of a bench can do, and whether it did enough for a run to count.
#pragma once

#include <string>

namespace relpos::cli {

struct Machine {
  std::string cpu, target;
  int family = -1, model = -1;  // -1: not known
  int threads = 1;
  double peak_one = 0, peak_all = 0;  // GFLOP/s of multiply-adds, one thread and all
  double bandwidth = 0;               // GB/s, all threads reading
  // No-ops that a thread retired, billions a second: the mean of all glances, and the best. A core
  // that runs threads of another machine beside ours gives us every other slot, while multiply-adds
  // alone, which leave slots free, hardly notice.
  double issue = 0, best_issue = 0;

  double issue_share() const noexcept { return best_issue > 0 ? issue / best_issue : 1.0; }
};

// About a second. `target` as relpos::show_config() names it.
Machine measure_machine(const std::string& target, int threads);
// Neighbours on a shared machine only ever take away.
void keep_higher(Machine& machine, const Machine& later);

// Why a run on this machine does not count; empty where it does. Threads that share one core reach
// less than 1.5 times one thread's peak; two AVX-512 cores with 512-bit units (one thread above 200
// GFLOP/s) reach 380. Cores that others share give less than 85 % of their issue slots.
std::string void_reason(const Machine& machine);

}  // namespace relpos::cli
