#include "schemes/common/frequencies.h"

#include <cmath>

namespace relpos::common {

std::vector<double> rotary_frequencies(int64_t dims, double base) {
  std::vector<double> frequencies;
  for (int64_t p = 0; p < dims; p += 2) {
    frequencies.push_back(std::pow(base, -static_cast<double>(p) / static_cast<double>(dims)));
  }
  return frequencies;
}

std::vector<double> rotary_frequencies_float32(int64_t dims, double base) {
  std::vector<double> frequencies;
  const auto single = static_cast<float>(base);
  for (int64_t p = 0; p < dims; p += 2) {
    const float exponent = static_cast<float>(p) / static_cast<float>(dims);
    const auto power =
        static_cast<float>(std::pow(static_cast<double>(single), static_cast<double>(exponent)));
    frequencies.push_back(1.0F / power);
  }
  return frequencies;
}

}  // namespace relpos::common
