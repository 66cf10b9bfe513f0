// What the machine of a bench can do, and whether neighbours leave enough of it for a round to count.
#pragma once

#include <string>

namespace relpos::cli {

struct Machine {
  std::string cpu, target;
  int family = -1, model = -1;  // -1: not known
  int threads = 1;
  double peak_one = 0, peak_all = 0;  // GFLOP/s of multiply-adds, one thread and all
  double bandwidth = 0;               // GB/s, all threads reading
  double issue_share = 1;             // of the issue slots: the mean of IssueSlots::share()
};

// How much of our cores is ours. A core that runs threads of another machine beside ours gives us
// every other issue slot, while multiply-adds alone, which leave slots free, hardly notice. So the
// no-ops that our threads retire tell, against the most that this process has seen them retire.
class IssueSlots {
 public:
  static constexpr double kQuiet = 0.85;

  explicit IssueSlots(int threads) : threads_(threads) {}
  double share();  // takes about 1 ms of every thread
  bool quiet() { return share() >= kQuiet; }

 private:
  int threads_;
  double best_ = 0;  // billions of no-ops a second
};

// About a second. `target` as relpos::show_config() names it.
Machine measure_machine(const std::string& target, int threads, IssueSlots& slots);
// Neighbours on a shared machine only ever take away.
void keep_higher(Machine& machine, const Machine& later);

// Why a run on this machine does not count; empty where it does. Threads that share one core reach
// less than 1.5 times one thread's peak; two AVX-512 cores with 512-bit units (one thread above 200
// GFLOP/s) reach 380.
std::string void_reason(const Machine& machine);

}  // namespace relpos::cli
