// What the machine of a bench can do, and whether neighbours leave it to us.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace relpos::cli {

struct Machine {
  std::string cpu, target;
  int family = -1, model = -1;  // -1: not known
  int threads = 1;
  double peak_one = 0, peak_all = 0;  // GFLOP/s of multiply-adds, one thread and all
  double bandwidth = 0;               // GB/s, all threads reading
  double look = 0, best_look = 0;     // of IssueSlots: the mean, and the best

  double issue_share() const noexcept { return best_look > 0 ? look / best_look : 1.0; }
};

// How much of our cores is ours. A core that runs threads of another machine beside ours gives us
// every other issue slot, while multiply-adds alone, which leave slots free, hardly notice. So the
// no-ops that our threads retire tell, against the most that anybody has seen them retire.
class IssueSlots {
 public:
  static constexpr double kQuiet = 0.85;  // share of the best from which on neighbours are quiet

  // `best`: of an earlier process.
  explicit IssueSlots(int threads, double best = 0) : threads_(threads), best_(best) {}
  virtual ~IssueSlots() = default;
  double look() {
    const double looked = rate();
    best_ = std::max(best_, looked);
    return looked;
  }
  double best() const noexcept { return best_; }
  bool quiet(double looked) const noexcept { return looked >= kQuiet * best_; }

 protected:
  // Billions a second, the mean of all threads. Rests for 5 ms, in which threads of the last call
  // stop spinning, and takes 1 ms of every thread.
  virtual double rate();

 private:
  int threads_;
  double best_;
};

// All threads reading some memory as fast as they can.
class Reading {
 public:
  using Span = std::pair<const float*, int64_t>;  // floats

  // Whole pieces of the spans, from their first aligned vector on.
  Reading(const std::string& target, int threads, const std::vector<Span>& spans);
  double bytes() const noexcept;
  // Of one pass, from a common start to the last thread's end. Whoever is free takes a piece.
  double seconds() const;

 private:
  static constexpr int64_t kPiece = int64_t{1} << 16;  // floats
  int threads_;
  float (*sum_)(const float*, int64_t);
  std::vector<const float*> pieces_;
};

// Seconds. `target` as relpos::show_config() names it.
Machine measure_machine(const std::string& target, int threads, IssueSlots& slots);
// Neighbours on a shared machine only ever take away.
void keep_higher(Machine& machine, const Machine& later);

// Why a run on this machine does not count; empty where it does. Threads that share one core reach
// less than 1.5 times one thread's peak; two AVX-512 cores with 512-bit units (one thread above 200
// GFLOP/s) reach 380.
std::string void_reason(const Machine& machine);

}  // namespace relpos::cli
