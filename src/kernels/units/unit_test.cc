// The units of this machine, bit for bit against their emulations; these against sums in double, and bit for
// bit against the instructions as Intel's manual defines them.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/cpu.h"
#include "base/float_mode.h"
#include "base/half.h"
#include "kernels/block/matrix_unit.h"

namespace relpos {
namespace {

using Rng = std::mt19937_64;

// kTiny: of products, and sums of these, at and below 2^-126.
enum class Numbers { kNormal, kWide, kTiny, kAnyBits };
constexpr Numbers kAllNumbers[] = {Numbers::kNormal, Numbers::kWide, Numbers::kTiny,
                                   Numbers::kAnyBits};

Buffer<uint16_t> draw_numbers(Rng& rng, int64_t n, Numbers kind) {
  Buffer<uint16_t> x(n);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-70, 63), bits(0, 0xFFFF), tiny(-76, -62);
  for (int64_t i = 0; i < n; ++i) {
    const float value = normal(rng);
    if (kind == Numbers::kTiny) {
      const int drawn = bits(rng);
      const float size = drawn % 4 == 0 ? 1.0f + static_cast<float>(drawn & 127) / 128.0f : 1.0f;
      x[i] = round_bfloat16(std::ldexp(value < 0.0f ? -size : size, tiny(rng)));
      if (drawn % 8 == 1)
        x[i] = static_cast<uint16_t>(drawn & 0x80FF);  // denormal, or about 2^-126
      continue;
    }
    const float wide = std::ldexp(value, exponent(rng));
    x[i] = kind == Numbers::kAnyBits ? static_cast<uint16_t>(bits(rng))
                                     : round_bfloat16(kind == Numbers::kWide ? wide : value);
  }
  return x;
}

Buffer<float> draw_floats(Rng& rng, int64_t n, Numbers kind) {
  Buffer<float> x(n);
  const Buffer<uint16_t> high = draw_numbers(rng, n, kind), low = draw_numbers(rng, n, kind);
  for (int64_t i = 0; i < n && kind == Numbers::kTiny; ++i) {  // up to 3 places from 2^-126
    const uint32_t drawn = low[i];
    x[i] = std::bit_cast<float>((high[i] & 0x8000U) << 16 | (0x7FFFFDU + drawn % 7));
  }
  for (int64_t i = 0; i < n && kind != Numbers::kTiny; ++i) {
    x[i] = std::bit_cast<float>(static_cast<uint32_t>(high[i]) << 16 | low[i]);
  }
  return x;
}

struct Sizes {
  int64_t M, N, K;
};
constexpr Sizes kSizes[] = {{16, 16, 32}, {48, 64, 64}, {96, 80, 96}, {64, 32, 160}, {16, 112, 32}};

// The product by a unit, on top of `start` where that is not empty.
Buffer<float> product(const MatrixUnit& unit, const Sizes& s, const Buffer<uint16_t>& a,
                      const Buffer<uint16_t>& b, const Buffer<float>& start) {
  Buffer<float> c(s.M * s.N);
  std::fill_n(c.get(), c.size(), 1.0f);
  if (start.size() > 0) std::copy_n(start.get(), c.size(), c.get());
  unit.begin();
  unit.gemm(s.M, s.N, s.K, a.get(), s.K, b.get(), s.N, c.get(), s.N, start.size() > 0);
  unit.end();
  return c;
}

void expect_products(const std::vector<MatrixUnit>& units) {
  Rng rng(1);
  for (const MatrixUnit& unit : units) {
    for (const Sizes& s : kSizes) {
      const auto a = draw_numbers(rng, s.M * s.K, Numbers::kNormal);
      const auto b = draw_numbers(rng, s.K * s.N, Numbers::kNormal);
      const auto start = draw_floats(rng, s.M * s.N, Numbers::kNormal);
      const auto fresh = product(unit, s, a, b, {}), joined = product(unit, s, a, b, start);
      for (int64_t n = 0; n < s.M * s.N; ++n) {
        double sum = 0.0, size = 0.0;
        for (int64_t k = 0; k < s.K; ++k) {
          const double x =
              static_cast<double>(widen_bfloat16(a[n / s.N * s.K + k])) *
              static_cast<double>(widen_bfloat16(b[k / 2 * 2 * s.N + n % s.N * 2 + k % 2]));
          sum += x;
          size += std::fabs(x);
        }
        const double first = start[n], most = (size + std::fabs(first)) * 100 * 0x1p-24;
        ASSERT_NEAR(fresh[n], sum, most) << unit.name << ", element " << n;
        ASSERT_NEAR(joined[n], sum + first, most) << unit.name << ", element " << n;
      }
    }
  }
}

TEST(Units, AreProducts) {
  expect_products(emulated_units());
  expect_products(usable_units());
}

TEST(Units, EmulationsRoundToNearestEvenAndFlushDenormals) {
  const float numbers[] = {1.0f,      0x1.01p0f,  0x1.03p0f,       0x1.010002p0f, -0x1.01p0f,
                           0x1p-126f, 0x1p-127f,  -0x1p-149f,      0.0f,          -0.0f,
                           HUGE_VALF, -HUGE_VALF, 0x1.fffffep127f, std::nanf(""), 3.0f,
                           5.0f};
  const uint16_t want[] = {0x3F80, 0x3F80, 0x3F82, 0x3F81, 0xBF80, 0x0080, 0x0000, 0x8000,
                           0x0000, 0x8000, 0x7F80, 0xFF80, 0x7F80, 0x7FC0, 0x4040, 0x40A0};
  Buffer<float> rows(2 * kUnitDepth);
  for (int64_t x = 0; x < rows.size(); ++x) rows[x] = numbers[x % 16];
  for (const MatrixUnit& unit : emulated_units()) {
    uint16_t row[kUnitDepth], pairs[2 * kUnitDepth];
    unit.narrow(1, kUnitDepth, rows.get(), kUnitDepth, row, kUnitDepth);
    unit.narrow_pairs(2, kUnitDepth, rows.get(), kUnitDepth, pairs);
    for (int64_t x = 0; x < kUnitDepth; ++x) {
      EXPECT_EQ(row[x], want[x % 16]) << unit.name << ", " << numbers[x % 16];
      EXPECT_EQ(pairs[2 * x], want[x % 16]);
      EXPECT_EQ(pairs[2 * x + 1], want[x % 16]);
    }
  }
}

// Exact on every machine: nothing is rounded.
TEST(Units, PairRowsAndFindWhatIsNotFinite) {
  Rng rng(6);
  for (const auto* units : {&emulated_units(), &usable_units()}) {
    for (const MatrixUnit& unit : *units) {
      for (const int64_t n : {16, 32, 48, 80}) {
        for (const int64_t rows : {1, 2, 5}) {
          const int64_t stride = n + 3;
          const auto from = draw_numbers(rng, rows * stride, Numbers::kAnyBits);
          Buffer<uint16_t> to((rows + 1) / 2 * 2 * n);
          unit.pair_rows(rows, n, from.get(), stride, to.get());
          for (int64_t at = 0; at < to.size(); ++at) {
            const int64_t row = at / (2 * n) * 2 + at % 2, x = at % (2 * n) / 2;
            const uint16_t want = row < rows ? from[row * stride + x] : uint16_t{0};
            ASSERT_EQ(to[at], want) << unit.name << ", " << rows << " x " << n << ", " << at;
          }
        }
      }
      for (const int64_t n : {1, 31, 32, 33, 70}) {
        auto numbers = draw_numbers(rng, n, Numbers::kWide);
        EXPECT_TRUE(unit.finite(n, numbers.get())) << unit.name << ", " << n;
        EXPECT_TRUE(unit.finite(0, numbers.get()));
        for (int64_t at = 0; at < n; ++at) {
          for (const uint16_t bad : {0x7F80, 0xFF80, 0x7FC0, 0xFF81}) {
            const uint16_t before = std::exchange(numbers[at], bad);
            EXPECT_FALSE(unit.finite(n, numbers.get())) << unit.name << ", " << at << " of " << n;
            numbers[at] = before;
          }
        }
      }
    }
  }
}

// The same product tile by tile, the rows of a chunk one after another.
Buffer<float> product_by_tiles(const MatrixUnit& unit, const Sizes& s, const Buffer<uint16_t>& a,
                               const Buffer<uint16_t>& b, const Buffer<float>& start) {
  Buffer<float> c(s.M * s.N);
  std::fill_n(c.get(), c.size(), 1.0f);
  if (start.size() > 0) std::copy_n(start.get(), c.size(), c.get());
  TileProduct x;
  unit.begin();
  for (int64_t m = 0; m < s.M; m += kUnitRows) {
    x.K = x.lda = s.K;
    x.a = a.get() + m * s.K;
    x.b = b.get();
    x.c = c.get() + m * s.N;
    x.ldb = x.ldc = s.N;
    x.accumulate = start.size() > 0;
    x.fresh = true;
    for (int64_t n = 0; n < s.N; n += kUnitRows) unit.multiply(x);
  }
  unit.put(x);
  EXPECT_EQ(x.held, nullptr);
  unit.put(x);  // nothing is held
  unit.end();
  return c;
}

TEST(Units, TilesHaveTheBitsOfTheProduct) {
  Rng rng(11);
  int units_with_tiles = 0;
  for (const auto* units : {&emulated_units(), &usable_units()}) {
    for (const MatrixUnit& unit : *units) {
      if (unit.multiply == nullptr) continue;
      ++units_with_tiles;
      for (const Sizes& s : kSizes) {
        const auto a = draw_numbers(rng, s.M * s.K, Numbers::kWide);
        const auto b = draw_numbers(rng, s.K * s.N, Numbers::kWide);
        const auto start = draw_floats(rng, s.M * s.N, Numbers::kWide);
        for (const auto* from : {&start, static_cast<const Buffer<float>*>(nullptr)}) {
          const Buffer<float> none, &onto = from == nullptr ? none : *from;
          const auto want = product(unit, s, a, b, onto);
          const auto got = product_by_tiles(unit, s, a, b, onto);
          EXPECT_EQ(std::memcmp(got.get(), want.get(), 4 * static_cast<size_t>(got.size())), 0)
              << unit.name << ", " << s.M << " x " << s.N << " x " << s.K;
        }
      }
      // A tile onto one that the unit still holds.
      const Sizes one = {16, 16, 32};
      const auto a = draw_numbers(rng, 16 * 32, Numbers::kNormal);
      const auto b = draw_numbers(rng, 32 * 16, Numbers::kNormal);
      const auto start = draw_floats(rng, 256, Numbers::kNormal);
      const auto want = product(unit, one, a, b, product(unit, one, a, b, start));
      Buffer<float> c(256);
      std::copy_n(start.get(), 256, c.get());
      TileProduct x;
      unit.begin();
      for (int twice = 0; twice < 2; ++twice) {
        x.K = x.lda = 32;
        x.a = a.get();
        x.b = b.get();
        x.c = c.get();
        x.ldb = x.ldc = 16;
        x.accumulate = x.fresh = true;
        unit.multiply(x);
      }
      unit.put(x);
      unit.end();
      EXPECT_EQ(std::memcmp(c.get(), want.get(), 1024), 0) << unit.name;
    }
  }
  EXPECT_GE(units_with_tiles, 1);
}

// What the manual says of each step: a multiply-add that is rounded once to nearest even, that takes
// denormals as 0 and gives 0 for a result that is one. Whether it is one is asked of the rounded
// number, as everywhere in that manual: of 24 bits, with an exponent of any size.
namespace manual {

double without_denormals(float x) {
  return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0, static_cast<double>(x)) : x;
}

// a + b, whose last bit is set where it is not exact: another rounding, to 24 bits, is then the only one.
double sum(double a, double b) {
  const double nearest = a + b;
  if (!std::isfinite(nearest)) return nearest;
  const double rest = nearest - a, lost = (a - (nearest - rest)) + (b - rest);
  auto bits = std::bit_cast<uint64_t>(nearest);
  if (lost == 0.0 || (bits & 1U) != 0) return nearest;
  bits += (lost > 0.0) == (nearest > 0.0) ? 1 : -1;
  return std::bit_cast<double>(bits);
}

float rounded(double exact) {
  if (!std::isfinite(exact) || std::fabs(exact) > 0x1p-100) return static_cast<float>(exact);
  const double number = static_cast<double>(static_cast<float>(exact * 0x1p200)) * 0x1p-200;
  return static_cast<float>(std::fabs(number) < 0x1p-126 ? std::copysign(0.0, number) : number);
}

float add(float a, float b) { return rounded(sum(without_denormals(a), without_denormals(b))); }

// c + a b.
float multiply_add(float c, uint16_t a, uint16_t b) {
  const double product =
      without_denormals(widen_bfloat16(a)) * without_denormals(widen_bfloat16(b));
  return rounded(sum(without_denormals(c), product));
}

// One element of C; a and b [K] are its row of A and its column of B.
float vdpbf16ps(float c, const std::vector<uint16_t>& a, const std::vector<uint16_t>& b) {
  for (size_t k = 0; k < a.size(); k += 2) {
    c = multiply_add(c, a[k + 1], b[k + 1]);
    c = multiply_add(c, a[k], b[k]);
  }
  return c;
}

float tdpbf16ps(float c, const std::vector<uint16_t>& a, const std::vector<uint16_t>& b) {
  for (size_t first = 0; first < a.size(); first += kUnitDepth) {
    float even = 0.0f, odd = 0.0f;
    for (size_t k = first; k < first + kUnitDepth; k += 2) {
      even = multiply_add(even, a[k], b[k]);
      odd = multiply_add(odd, a[k + 1], b[k + 1]);
    }
    c = add(c, add(even, odd));
  }
  return c;
}

}  // namespace manual

// NaN of any payload is one NaN.
bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) ||
         std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

// In any floating-point mode, which the instructions do not heed.
TEST(Units, EmulationsAreWhatTheManualSays) {
  Rng rng(8);
  int64_t zeros = 0, least = 0;
  for (const MatrixUnit& unit : emulated_units()) {
    const auto element =
        std::string(unit.name) == "amx_emulated" ? manual::tdpbf16ps : manual::vdpbf16ps;
    for (Numbers kind : kAllNumbers) {
      for (const Sizes& s : kSizes) {
        const auto a = draw_numbers(rng, s.M * s.K, kind), b = draw_numbers(rng, s.K * s.N, kind);
        const auto start = draw_floats(rng, s.M * s.N, kind);
        std::vector<float> want;
        for (int64_t n = 0; n < s.M * s.N; ++n) {
          std::vector<uint16_t> row, column;
          for (int64_t k = 0; k < s.K; ++k) {
            row.push_back(a[n / s.N * s.K + k]);
            column.push_back(b[k / 2 * 2 * s.N + n % s.N * 2 + k % 2]);
          }
          want.push_back(element(start[n], row, column));
          zeros += want.back() == 0.0f ? 1 : 0;
          least += std::fabs(want.back()) == 0x1p-126f ? 1 : 0;
        }
        for (const FloatControl control : {kKeepDenormals, kFlushDenormals}) {
          const FloatMode mode(control);
          const auto got = product(unit, s, a, b, start);
          for (int64_t n = 0; n < s.M * s.N; ++n) {
            ASSERT_TRUE(same(got[n], want[n]))
                << unit.name << ", numbers " << static_cast<int>(kind) << ", element " << n
                << " of " << s.M << " x " << s.N << " x " << s.K << ": " << got[n] << ", not "
                << want[n];
          }
        }
      }
    }
  }
  EXPECT_GT(zeros, 0);
  EXPECT_GT(least, 0);
}

// Where the order of sums was seen to be the manual's: on Intel's CPUs and on AMD's Zen 4.
bool is_known() { return this_cpu().intel || this_cpu().zen4_or_3; }

TEST(Units, HaveTheBitsOfTheirEmulations) {
  if (usable_units().empty() || !is_known()) GTEST_SKIP() << "no known unit on this machine";
  Rng rng(2);
  for (const MatrixUnit& unit : usable_units()) {
    for (const MatrixUnit& emulated : emulated_units()) {
      if (std::string(emulated.name) != std::string(unit.name) + "_emulated") continue;
      for (Numbers kind : kAllNumbers) {
        for (const Sizes& s : kSizes) {
          const auto a = draw_numbers(rng, s.M * s.K, kind), b = draw_numbers(rng, s.K * s.N, kind);
          const auto start = draw_floats(rng, s.M * s.N, kind);
          for (const bool joins : {false, true}) {
            const auto from = joins ? draw_floats(rng, s.M * s.N, kind) : Buffer<float>();
            const auto got = product(unit, s, a, b, from), want = product(emulated, s, a, b, from);
            int64_t different = 0;
            for (int64_t n = 0; n < s.M * s.N; ++n) different += same(got[n], want[n]) ? 0 : 1;
            EXPECT_EQ(different, 0) << unit.name << ", numbers " << static_cast<int>(kind) << ", "
                                    << s.M << " x " << s.N << " x " << s.K << ", of " << s.M * s.N;
          }
          Buffer<uint16_t> got(s.M * s.N), want(s.M * s.N);
          const int64_t width = round_up(s.N, kUnitDepth);
          if (width != s.N) continue;
          unit.narrow(s.M, s.N, start.get(), s.N, got.get(), s.N);
          emulated.narrow(s.M, s.N, start.get(), s.N, want.get(), s.N);
          EXPECT_EQ(std::memcmp(got.get(), want.get(), 2 * static_cast<size_t>(got.size())), 0);
          unit.narrow_pairs(s.M, s.N, start.get(), s.N, got.get());
          emulated.narrow_pairs(s.M, s.N, start.get(), s.N, want.get());
          EXPECT_EQ(std::memcmp(got.get(), want.get(), 2 * static_cast<size_t>(got.size())), 0);
        }
      }
    }
  }
}

}  // namespace
}  // namespace relpos
