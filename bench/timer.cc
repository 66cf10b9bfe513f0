// What bench/clock.py cannot time from Python, for ctypes: the machine, and a call from C++.
#include <algorithm>
#include <chrono>
#include <numeric>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "cli/machine/machine.h"
#include "kernels/block/kernels.h"
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

// What work(worker) counts, a nanosecond, the sum over all threads: the best of `bursts`.
template <typename F>
double rate_of(int threads, int bursts, F&& work) {
  double best = 0.0;
  std::vector<double> rates(static_cast<size_t>(threads));
  for (int burst = 0; burst < bursts; ++burst) {
    cli::parallel_seconds(threads, [&](int worker) {
      const auto start = std::chrono::steady_clock::now();
      const double count = work(worker);
      rates[static_cast<size_t>(worker)] = 1e-9 * count / seconds_since(start);
    });
    best = std::max(best, std::accumulate(rates.begin(), rates.end(), 0.0));
  }
  return best;
}

constexpr int kBursts = 8;

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

const char* relpos_bench_cpu() {
  static const std::string name = cli::cpu_name();
  return name.c_str();
}

double relpos_bench_peak(int threads) { return cli::peak_gflops(target(), threads); }

// The same, GFLOP/s, with the loads and stores of the product of a tile: 96 queries and 64 keys of head
// size 64, in the nearest caches.
double relpos_bench_tile(int threads) {
  constexpr int64_t kDim = 64, kRounds = 4000;
  const Buffer<float> memory(threads * (2 * kRows + kTile) * kDim);
  std::fill_n(memory.get(), memory.size(), 0.5f);
  return rate_of(threads, kBursts, [&](int worker) {
    float* a = memory.get() + worker * (2 * kRows + kTile) * kDim;
    float *b = a + kRows * kDim, *c = b + kTile * kDim;
    for (int64_t n = 0; n < kRounds; ++n) {
      tile_kernels().gemm(kRows, kTile, kDim, a, kDim, 1, b, kTile, c, kTile, false);
    }
    return 2.0 * kRows * kTile * kDim * kRounds;
  });
}

// GHz, the mean of all threads, from products of integers that wait for each other, three cycles each
// on every x86 CPU of today; 0 elsewhere.
double relpos_bench_clock([[maybe_unused]] int threads) {
#if defined(__x86_64__)
  constexpr int64_t kRounds = 100000, kProducts = 64, kCycles = 3;
  const auto products = [](int) {
    uint64_t x = 3;
    for (int64_t n = 0; n < kRounds; ++n) {
      asm volatile(".rept 64\n\timulq %0, %0\n\t.endr" : "+r"(x));
    }
    return static_cast<double>(kCycles * kProducts * kRounds);
  };
  return rate_of(threads, kBursts, products) / threads;
#else
  return 0.0;
#endif
}

double relpos_bench_bandwidth(int threads) { return cli::read_bandwidth(target(), threads); }

double relpos_bench_read(int threads, const float* x, int64_t n) {
  return cli::reading_seconds(target(), threads, x, n);
}

// No-ops that a thread retires, billions a second, the mean of all over about 1 ms: a shorter sample
// would see the threads wake up.
double relpos_bench_no_ops(int threads) {
  constexpr int64_t kRounds = 400000, kNoOps = 96;
  const auto no_ops = [](int) {
    for (int64_t n = 0; n < kRounds; ++n) asm volatile(".rept 96\n\tnop\n\t.endr");
    return static_cast<double>(kNoOps * kRounds);
  };
  return rate_of(threads, 1, no_ops) / threads;
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
