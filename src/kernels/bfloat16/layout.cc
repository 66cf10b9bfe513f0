#include "kernels/bfloat16/layout.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/half.h"

namespace relpos {
namespace {

uint32_t pair_of(uint16_t low, uint16_t high) { return low | static_cast<uint32_t>(high) << 16; }

}  // namespace

void pair_transposed(const uint16_t* rows, int64_t stride, int64_t count, int64_t n, uint16_t* to) {
  for (int64_t d = 0; d < n; d += 2, to += 2 * kTile) {
    uint32_t pairs[kTile] = {};
    for (int64_t key = 0; key < count; ++key) {
      std::memcpy(&pairs[key], rows + key * stride + d, sizeof(uint32_t));
    }
    std::memcpy(to, pairs, sizeof pairs);
  }
}

void pair_rows(const uint16_t* rows, int64_t stride, int64_t count, int64_t n, uint16_t* to) {
  constexpr int64_t kStep = 16;
  for (int64_t key = 0; key < kTile; key += 2) {
    const uint16_t *first = rows + key * stride, *second = first + stride;
    for (int64_t x = 0; x < n; x += kStep, to += 2 * kStep) {
      uint32_t pairs[kStep] = {};
      for (int64_t i = 0; i < kStep && key < count; ++i) {
        pairs[i] = pair_of(first[x + i], key + 1 < count ? second[x + i] : 0);
      }
      std::memcpy(to, pairs, sizeof pairs);
    }
  }
}

bool finite(const uint16_t* rows, int64_t stride, int64_t count, int64_t n) {
  constexpr uint16_t kExponent = 0x7F80;
  bool all = true;
  for (int64_t row = 0; row < count; ++row) {
    for (int64_t x = 0; x < n; ++x) all &= (rows[row * stride + x] & kExponent) != kExponent;
  }
  return all;
}

float largest_norm(const uint16_t* rows, int64_t stride, int64_t count, int64_t n) {
  constexpr double kRounded = 1.0 + 0x1p-7;
  double largest = 0.0;
  for (int64_t row = 0; row < count; ++row) {
    double sum = 0.0;
    for (int64_t x = 0; x < n; ++x) {
      const auto value = static_cast<double>(widen_bfloat16(rows[row * stride + x]));
      sum += value * value;
    }
    largest = sum <= largest ? largest : sum;  // NaN stays
  }
  return static_cast<float>(std::sqrt(largest) * kRounded);
}

}  // namespace relpos
