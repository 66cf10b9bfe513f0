// What bench/clock.py cannot time from Python, for ctypes: the machine, and a call from C++.
#include <chrono>
#include <numeric>
#include <string>
#include <vector>

#include "bench_machine.h"
#include "relpos/attention.h"

namespace {

using namespace relpos;

std::string target() {
  for (const auto& [name, value] : show_config()) {
    if (name == "target of float32") return value;
  }
  return "";
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

const char* relpos_bench_cpu() {
  static const std::string name = cli::cpu_name();
  return name.c_str();
}

double relpos_bench_peak(int threads) { return cli::peak_gflops(target(), threads); }

double relpos_bench_bandwidth(int threads) { return cli::read_bandwidth(target(), threads); }

double relpos_bench_read(int threads, const float* x, int64_t n) {
  return cli::reading_seconds(target(), threads, x, n);
}

// No-ops that a thread retires, billions a second, the mean of all over about 1 ms: a shorter sample
// would see the threads wake up.
double relpos_bench_no_ops(int threads) {
  constexpr int64_t kRounds = 400000, kNoOps = 96;
  std::vector<double> rates(static_cast<size_t>(threads));
  cli::parallel_seconds(threads, [&](int worker) {
    const auto start = std::chrono::steady_clock::now();
    for (int64_t n = 0; n < kRounds; ++n) asm volatile(".rept 96\n\tnop\n\t.endr");
    rates[static_cast<size_t>(worker)] =
        1e-9 * static_cast<double>(kNoOps * kRounds) / seconds_since(start);
  });
  return std::accumulate(rates.begin(), rates.end(), 0.0) / threads;
}

// Seconds of one of `repeats` forward calls in a row, [1, 1, length, dim] float32.
double relpos_bench_call(const float* query, const float* key, const float* value, float* out,
                         int64_t length, int64_t dim, int64_t repeats) {
  const auto view = [&](const float* data) {
    return TensorView(const_cast<float*>(data), DType::kFloat32, {1, 1, length, dim});
  };
  const TensorView q = view(query), k = view(key), v = view(value), o = view(out);
  const Position position;
  const Options options;
  const auto start = std::chrono::steady_clock::now();
  for (int64_t n = 0; n < repeats; ++n) attention(q, k, v, position, options, o);
  return seconds_since(start) / static_cast<double>(repeats);
}

}  // extern "C"
#pragma GCC visibility pop
