// Frequencies of rotations (Su et al. 2021): pair p of `dims` turns by base^(-2 p / dims) a position.
#pragma once

#include <cstdint>
#include <vector>

namespace relpos::common {

std::vector<double> rotary_frequencies(int64_t dims, double base);  // [dims / 2]

// 1 / base^(2 p / dims) with exponent, power and quotient each rounded to float32, as Hugging Face's
// rotary embeddings compute it. torch's own float32 power is within 1 ulp of this one.
std::vector<double> rotary_frequencies_float32(int64_t dims, double base);

}  // namespace relpos::common
