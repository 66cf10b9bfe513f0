// Loops that do nothing but multiply and add, or read: what a machine can do at one SIMD target.
#pragma once

#include <cstdint>
#include <vector>

namespace relpos::cli {

struct Probes {
  const char* target;  // of float32, as relpos::show_config() names it
  int64_t flops;       // of one round of multiply_adds
  // Twelve independent sums, enough to hide the latency of two units; returns what they come to.
  float (*multiply_adds)(int64_t rounds);
  // The sum of n floats, aligned to a vector; n is a multiple of 256.
  float (*sum)(const float* x, int64_t n);
};

// Every target of this build that this machine runs.
std::vector<Probes> usable_probes();

}  // namespace relpos::cli
