#include "bench_machine.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <functional>
#include <numeric>
#include <sstream>
#include <thread>
#include <vector>

#include "bench_probes.h"
#include "relpos/error.h"

namespace relpos::cli {
namespace {

constexpr double kBurst = 0.02;  // seconds
constexpr int kBursts = 15, kReadings = 8;
constexpr int64_t kReadFloats = int64_t{64} << 20;  // 256 MiB: beyond every cache

// Seconds from a common start to the end of the last of `threads` calls work(worker).
double seconds_of(int threads, const std::function<void(int)>& work) {
  using Clock = std::chrono::steady_clock;
  Clock::time_point start;
  std::barrier gate(threads, [&start]() noexcept { start = Clock::now(); });
  const auto one = [&](int worker) {
    gate.arrive_and_wait();
    work(worker);
  };
  std::vector<std::thread> helpers;
  for (int worker = 1; worker < threads; ++worker) helpers.emplace_back(one, worker);
  one(0);
  for (std::thread& helper : helpers) helper.join();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// No-ops a second of one thread, billions, over about 1 ms: a shorter look would see it wake up.
double no_op_rate() {
  constexpr int64_t kRounds = 400000, kNoOps = 96;
  const auto start = std::chrono::steady_clock::now();
  for (int64_t n = 0; n < kRounds; ++n) asm volatile(".rept 96\n\tnop\n\t.endr");
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
  return 1e-9 * static_cast<double>(kNoOps * kRounds) / spent.count();
}

// The least of f(), seconds: of `least` calls, and on for some time until five found us undisturbed.
double least_seconds(IssueSlots& slots, int least, const std::function<double()>& f) {
  constexpr int kQuietOnes = 5;
  constexpr std::chrono::seconds kPatience{2};
  const auto end = std::chrono::steady_clock::now() + kPatience;
  double best = HUGE_VAL;
  bool before = slots.quiet(slots.look());
  for (int n = 0, quiet = 0;
       n < least || (quiet < kQuietOnes && std::chrono::steady_clock::now() < end); ++n) {
    best = std::min(best, f());
    const bool after = slots.quiet(slots.look());
    quiet += before && after ? 1 : 0;
    before = after;
  }
  return best;
}

double peak(const Probes& probes, int threads, IssueSlots& slots) {
  const auto burst = [&](int64_t rounds) {
    return seconds_of(
        threads, [&](int) { [[maybe_unused]] volatile float sink = probes.multiply_adds(rounds); });
  };
  int64_t rounds = 1 << 16;
  for (double seconds = 0; seconds < kBurst; rounds *= 2) seconds = burst(rounds);
  const double best = least_seconds(slots, kBursts, [&] { return burst(rounds); });
  return 1e-9 * static_cast<double>(probes.flops * rounds * threads) / best;
}

double read_bandwidth(const std::string& target, int threads, IssueSlots& slots) {
  const std::vector<float> memory(kReadFloats, 1.0f);
  const Reading reading(target, threads, {{memory.data(), kReadFloats}});
  return 1e-9 * reading.bytes() /
         least_seconds(slots, kReadings, [&] { return reading.seconds(); });
}

// Of half a second.
double mean_look(IssueSlots& slots) {
  constexpr int kLooks = 50;
  double sum = 0;
  for (int n = 0; n < kLooks; ++n) sum += slots.look() / kLooks;
  return sum;
}

Probes probes_of(const std::string& target) {
  const std::vector<Probes> all = compiled_probes();
  const auto probes =
      std::ranges::find_if(all, [&](const Probes& p) { return p.target == target; });
  check_value(probes != all.end(), "bench: no measurement of the machine for target ", target);
  return *probes;
}

void read_cpu(Machine& machine) {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line) && !line.empty();) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || colon + 2 > line.size()) continue;
    const std::string name = line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1);
    const std::string value = line.substr(colon + 2);
    if (name == "model name") machine.cpu = value;
    if (name == "cpu family") std::istringstream(value) >> machine.family;
    if (name == "model") std::istringstream(value) >> machine.model;
  }
}

}  // namespace

Reading::Reading(const std::string& target, int threads, const std::vector<Span>& spans)
    : threads_(threads), sum_(probes_of(target).sum) {
  constexpr int64_t kVector = 16;  // floats
  for (const auto& [first, count] : spans) {
    const int64_t beyond = static_cast<int64_t>(reinterpret_cast<uintptr_t>(first) / 4) % kVector;
    const int64_t skipped = (kVector - beyond) % kVector;
    for (int64_t at = skipped; at + kPiece <= count; at += kPiece) pieces_.push_back(first + at);
  }
}

double Reading::bytes() const noexcept {
  return 4.0 * kPiece * static_cast<double>(pieces_.size());
}

double Reading::seconds() const {
  std::atomic<size_t> next{0};
  return seconds_of(threads_, [&](int) {
    for (size_t n = next++; n < pieces_.size(); n = next++) {
      [[maybe_unused]] volatile float sink = sum_(pieces_[n], kPiece);
    }
  });
}

double IssueSlots::rate() {
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  std::vector<double> rates(static_cast<size_t>(threads_));
  seconds_of(threads_, [&](int worker) { rates[static_cast<size_t>(worker)] = no_op_rate(); });
  return std::accumulate(rates.begin(), rates.end(), 0.0) / threads_;
}

Machine measure_machine(const std::string& target, int threads, IssueSlots& slots) {
  Machine machine;
  machine.target = target;
  machine.threads = threads;
  read_cpu(machine);
  const Probes probes = probes_of(target);
  machine.look = mean_look(slots);
  machine.peak_one = peak(probes, 1, slots);
  machine.peak_all = threads == 1 ? machine.peak_one : peak(probes, threads, slots);
  machine.bandwidth = read_bandwidth(target, threads, slots);
  machine.best_look = slots.best();
  return machine;
}

void keep_higher(Machine& machine, const Machine& later) {
  machine.peak_one = std::max(machine.peak_one, later.peak_one);
  machine.peak_all = std::max(machine.peak_all, later.peak_all);
  machine.bandwidth = std::max(machine.bandwidth, later.bandwidth);
  machine.look = (machine.look + later.look) / 2;
  machine.best_look = std::max(machine.best_look, later.best_look);
}

std::string void_reason(const Machine& machine) {
  if (machine.threads < 2) return "";
  if (machine.peak_all < 1.5 * machine.peak_one) {
    return "all threads together reach less than 1.5 times one: they share a core, or something "
           "else runs";
  }
  if (machine.threads == 2 && machine.target == "avx512" && machine.peak_one > 200 &&
      machine.peak_all < 380) {
    return "two threads of a CPU with 512-bit units reach less than 380 GFLOP/s: they share a "
           "core, or something else runs";
  }
  return "";
}

}  // namespace relpos::cli
