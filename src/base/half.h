// bfloat16 and float16: widening, and rounding to nearest even straight from double.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace relpos {

inline float widen_bfloat16(uint16_t bits) noexcept {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

inline float widen_float16(uint16_t bits) noexcept {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000U) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1FU, fraction = bits & 0x3FFU;
  if (exponent == 0) {  // zero and subnormals, exact in float32
    const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  const uint32_t wide = exponent == 31 ? 0xFFU : exponent + 112;
  return std::bit_cast<float>(sign | (wide << 23) | (fraction << 13));
}

inline uint16_t round_bfloat16(float value) noexcept {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40U);
  return static_cast<uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

inline uint16_t round_float16(float value) noexcept {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000U, magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) {
    return static_cast<uint16_t>(sign | 0x7E00U | ((magnitude >> 13) & 0x3FFU));
  }
  if (magnitude >= 0x47800000U) return static_cast<uint16_t>(sign | 0x7C00U);  // from 2^16 on
  const uint32_t exponent = magnitude >> 23;
  if (exponent < 102) return static_cast<uint16_t>(sign);  // below 2^-25: nearest is zero
  const bool subnormal = exponent < 113;                   // below 2^-14
  const uint32_t fraction = (magnitude & 0x7FFFFFU) | (subnormal ? 0x800000U : 0U);
  const uint32_t shift = subnormal ? 126 - exponent : 13;
  const uint32_t base = subnormal ? 0U : (exponent - 112) << 10;
  const uint32_t kept = fraction >> shift, rest = fraction & ((1U << shift) - 1);
  const uint32_t middle = 1U << (shift - 1);
  const bool up = rest > middle || (rest == middle && (kept & 1U) != 0);
  return static_cast<uint16_t>(sign | (base + kept + (up ? 1U : 0U)));
}

// float32 with its last bit set where `value` is not exact: a second rounding to 16 bits then gives
// the nearest to `value` itself.
inline float round_to_odd(double value) noexcept {
  const auto nearest = static_cast<float>(value);
  const auto back = static_cast<double>(nearest);
  if (back == value || std::isnan(value)) return nearest;
  auto bits = std::bit_cast<uint32_t>(nearest);
  if (std::abs(back) > std::abs(value)) --bits;
  return std::bit_cast<float>(bits | 1U);
}

inline uint16_t round_bfloat16(double value) noexcept {
  return round_bfloat16(round_to_odd(value));
}
inline uint16_t round_float16(double value) noexcept { return round_float16(round_to_odd(value)); }

}  // namespace relpos
