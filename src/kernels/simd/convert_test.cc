// Every 16-bit pattern widens as base/half.h widens it; floats round as it rounds them.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "base/half.h"
#include "kernels/block/kernels.h"

namespace relpos {
namespace {

bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) ||
         std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

TEST(Convert, EveryHalfWidens) {
  std::vector<uint16_t> bits(65536 + 1);
  for (size_t n = 0; n < bits.size(); ++n) bits[n] = static_cast<uint16_t>(n);
  std::vector<float> row(bits.size());
  const auto n = static_cast<int64_t>(bits.size());
  for (const Kernels& kernels : usable_kernels()) {
    kernels.widen_bfloat16(bits.data(), n, row.data());
    for (size_t i = 0; i < bits.size(); ++i)
      ASSERT_TRUE(same(row[i], widen_bfloat16(bits[i]))) << i;
    kernels.widen_float16(bits.data(), n, row.data());
    for (size_t i = 0; i < bits.size(); ++i) ASSERT_TRUE(same(row[i], widen_float16(bits[i]))) << i;
  }
}

TEST(Convert, FloatsRoundToTheNearestEven) {
  // Around every exponent and rounding boundary: all high halves, the low bits that decide.
  std::vector<float> row;
  for (uint32_t high = 0; high < 65536; ++high) {
    for (uint32_t low :
         {0x0000U, 0x0001U, 0x0FFFU, 0x1000U, 0x1001U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU}) {
      row.push_back(std::bit_cast<float>(high << 16 | low));
    }
  }
  std::vector<uint16_t> bits(row.size());
  const auto n = static_cast<int64_t>(row.size());
  for (const Kernels& kernels : usable_kernels()) {
    kernels.narrow_bfloat16(row.data(), n, bits.data());
    for (size_t i = 0; i < row.size(); ++i) {
      ASSERT_TRUE(same(widen_bfloat16(bits[i]), widen_bfloat16(round_bfloat16(row[i])))) << i;
    }
    kernels.narrow_float16(row.data(), n, bits.data());
    for (size_t i = 0; i < row.size(); ++i) {
      ASSERT_TRUE(same(widen_float16(bits[i]), widen_float16(round_float16(row[i])))) << i;
    }
  }
}

}  // namespace
}  // namespace relpos
