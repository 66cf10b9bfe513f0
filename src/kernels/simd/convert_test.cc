// Every 16-bit pattern widens as base/half.h widens it; floats round as it rounds them. Rows that are
// scaled in double are what log2.h makes of each number.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/half.h"
#include "kernels/block/kernels.h"
#include "kernels/block/log2.h"

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

TEST(Convert, RowsScaledInDoubleAreTheirNumbersInLog2Units) {
  std::vector<float> numbers;
  for (uint32_t high = 0; high < 65536; high += 3) {
    for (const uint32_t low : {0x0000U, 0x5A5BU, 0xFFFFU}) {
      numbers.push_back(std::bit_cast<float>(high << 16 | low));
    }
  }
  const auto n = static_cast<int64_t>(numbers.size());
  const auto beyond = [](double product) {
    return std::fabs(product) > kLinear && std::isfinite(product);
  };
  std::vector<float> row(numbers.size());
  for (const Kernels& kernels : usable_kernels()) {
    for (const double multiplier : {1.0, -0.3, 1e10, 0.0, 1e-30}) {
      for (int64_t first = 0; first < n; first += 61) {  // with and without a rest, either way
        const int64_t count = std::min<int64_t>(61, n - first);
        for (const int64_t step : {1, -1}) {
          const float* from = numbers.data() + first + (step == 1 ? 0 : count - 1);
          bool fits = true;
          for (int64_t i = 0; i < count; ++i) {
            fits = fits && !beyond(static_cast<double>(from[i * step]) * multiplier);
          }
          const bool found =
              kernels.scale_in_double(from, step, count, multiplier, kLog2e, row.data());
          ASSERT_TRUE(fits || !found) << first;
          if (step == 1) {
            ASSERT_EQ(kernels.linear(from, count, multiplier), found);
          }
          ASSERT_TRUE(found || !fits || multiplier != 1.0) << first;
          for (int64_t i = 0; found && i < count; ++i) {
            const double product = static_cast<double>(from[i * step]) * multiplier;
            ASSERT_TRUE(same(row[i], static_cast<float>(to_log2(product))))
                << from[i * step] << " times " << multiplier << " gave " << row[i];
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace relpos
