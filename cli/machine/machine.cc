#include "cli/machine/machine.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cmath>
#include <fstream>
#include <map>
#include <thread>
#include <vector>

#include "base/buffer.h"
#include "cli/machine/probes.h"
#include "relpos/error.h"

namespace relpos::cli {
namespace {

constexpr double kBurst = 0.02;  // seconds
constexpr int kBursts = 15, kPasses = 8;
constexpr int64_t kPiece = int64_t{1} << 16;  // floats

Probes probes_of(const std::string& target) {
  const std::vector<Probes> all = usable_probes();
  const auto probes =
      std::ranges::find_if(all, [&](const Probes& p) { return p.target == target; });
  check_value(probes != all.end(), "bench: no measurement of the machine for target ", target);
  return *probes;
}

}  // namespace

std::string cpu_name() {
  std::map<std::string, std::string> fields;
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line) && !line.empty();) {
    const size_t colon = line.find(':'), end = line.find_last_not_of(" \t", colon - 1);
    if (colon != std::string::npos && colon + 2 <= line.size()) {
      fields[line.substr(0, end + 1)] = line.substr(colon + 2);
    }
  }
  if (!fields.contains("model name")) return "unknown CPU";
  return fields["model name"] + ", family " + fields["cpu family"] + " model " + fields["model"];
}

double parallel_seconds(int threads, const std::function<void(int)>& work) {
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

double peak_gflops(const std::string& target, int threads) {
  const Probes probes = probes_of(target);
  const auto burst = [&](int64_t rounds) {
    return parallel_seconds(
        threads, [&](int) { [[maybe_unused]] volatile float sink = probes.multiply_adds(rounds); });
  };
  int64_t rounds = 1 << 16;
  while (burst(rounds) < kBurst) rounds *= 2;
  double best = HUGE_VAL;
  for (int n = 0; n < kBursts; ++n) best = std::min(best, burst(rounds));
  return 1e-9 * static_cast<double>(probes.flops * rounds * threads) / best;
}

double reading_seconds(const std::string& target, int threads, const float* x, int64_t n) {
  const Probes probes = probes_of(target);
  std::atomic<int64_t> next{0};
  return parallel_seconds(threads, [&](int) {
    for (int64_t at = next += kPiece; at <= n; at = next += kPiece) {
      [[maybe_unused]] volatile float sink = probes.sum(x + at - kPiece, kPiece);
    }
  });
}

double read_bandwidth(const std::string& target, int threads) {
  const Buffer<float> memory(int64_t{64} << 20);
  std::fill_n(memory.get(), memory.size(), 1.0f);
  double best = HUGE_VAL;
  for (int n = 0; n < kPasses; ++n) {
    best = std::min(best, reading_seconds(target, threads, memory.get(), memory.size()));
  }
  return 4e-9 * static_cast<double>(memory.size()) / best;
}

}  // namespace relpos::cli
