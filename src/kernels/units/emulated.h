// The arithmetic of bfloat16 units in plain C++.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace relpos::emulated {

inline constexpr float kLeastNormal = std::numeric_limits<float>::min();

inline float flushed(float x) { return std::fabs(x) < kLeastNormal ? std::copysign(0.0f, x) : x; }
// The numbers of a pair.
inline float low(uint32_t pair) { return flushed(std::bit_cast<float>(pair << 16)); }
inline float high(uint32_t pair) { return flushed(std::bit_cast<float>(pair & 0xFFFF0000U)); }

using Sums = std::array<float, 16>;

// sum + a b as the units flush it: 0 where it is below 2^-126 after rounding to the 24 bits of a normal
// number. Its size is judged in double: as a denormal, whose last place is 2^-149, it may round to 2^-126, and
// ARM flushes what is below 2^-126 before rounding. What is 2^-126 in double may be a little less.
inline float flushed_fma(float a, float b, float sum) {
  constexpr double kRoundedUp = 0x1.ffffffp-127;  // the least that rounds to 2^-126
  const double nearest = static_cast<double>(a) * static_cast<double>(b) + static_cast<double>(sum);
  if (const double size = std::fabs(nearest); size <= static_cast<double>(kLeastNormal)) {
    return std::copysign(size < kRoundedUp ? 0.0f : kLeastNormal, static_cast<float>(nearest));
  }
  return std::fma(a, b, sum);
}

// sums[n] += a times one number of pairs[n], rounded once. A product of two bfloat16 numbers is a
// float, unless it leaves the range of floats; sums of floats are exact where they are denormal.
template <typename Half>
inline void add_products(float a, const uint32_t* pairs, const Half& half, Sums& sums) {
  Sums products;
  bool exact = true;
  for (int n = 0; n < 16; ++n) {
    const float b = half(pairs[n]);
    products[n] = a * b;
    const float size = std::fabs(products[n]);
    exact &= (size >= kLeastNormal && size <= std::numeric_limits<float>::max()) || a == 0.0f ||
             b == 0.0f;
  }
  for (int n = 0; n < 16; ++n) {
    sums[n] = exact ? flushed(sums[n] + products[n]) : flushed_fma(a, half(pairs[n]), sums[n]);
  }
}

// As `narrow` of MatrixUnit.
inline uint16_t narrowed(float value) {
  if (std::isnan(value)) {
    return static_cast<uint16_t>((std::bit_cast<uint32_t>(value) >> 16) | 0x40U);
  }
  const auto bits = std::bit_cast<uint32_t>(flushed(value));
  return static_cast<uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

}  // namespace relpos::emulated
