// Numbers that are the same on every machine: a counter-based generator, seeded once.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

#include "relpos/tensor.h"

namespace relpos::cli {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  // SplitMix64 (Steele, Lea, Flood 2014).
  uint64_t bits() noexcept {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  double uniform() noexcept { return static_cast<double>(bits() >> 11) * 0x1p-53; }  // [0, 1)
  double normal() noexcept {                                                         // Box-Muller
    const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
    return radius * std::cos(2.0 * std::numbers::pi * uniform());
  }

 private:
  uint64_t state_;
};

inline Tensor normal_tensor(DType dtype, const std::vector<int64_t>& shape, Random& random) {
  Tensor tensor(dtype, shape);
  for (int64_t n = 0; n < tensor.view().numel(); ++n) tensor.view().store(n, random.normal());
  return tensor;
}

}  // namespace relpos::cli
