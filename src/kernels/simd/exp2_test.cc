// The kernels' exp2 over all floats, for every SIMD target that this machine runs.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/parallel.h"
#include "base/sanitized.h"
#include "kernels/block/kernels.h"

namespace relpos {
namespace {

// One float in so many; RELPOS_FULL=1 takes every one, 85 s. Sanitized and unoptimised builds take few.
#ifdef __OPTIMIZE__
constexpr int64_t kFew = kSanitized ? 1009 : 13;
#else
constexpr int64_t kFew = 1009;
#endif
const int64_t kStride = std::getenv("RELPOS_FULL") != nullptr ? 1 : kFew;

// A multiply-add that rounds twice adds a share of its own.
constexpr double kFused = 1.0, kRoundedTwice = 1.1;

double most_ulps(const Kernels& target) {
  return std::string(target.name) == "baseline" ? kRoundedTwice : kFused;
}

std::vector<float> results(const Kernels& target, std::vector<float> x) {
  const size_t n = x.size();
  x.resize(round_up(static_cast<int64_t>(n), kLanes));
  std::vector<float> y(x.size());
  target.exponentials(x.data(), static_cast<int64_t>(x.size()), y.data());
  y.resize(n);
  return y;
}

// Above kHighest the power of two overflows before the product does; scores stay below 2^60.
constexpr float kLowest = -125.0f, kHighest = 127.5f;
constexpr int64_t kChunk = 4096;

int64_t bits(float x) { return std::bit_cast<uint32_t>(x); }
float from_bits(int64_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x)); }

// Up to here the float nearest to 2^x is 1; three quarters of all floats lie there.
constexpr float kOne = 0x1p-25f;

// The largest error of each target in units of the last place, over kChunk floats from bit pattern
// `first` on; infinite for NaN, and for anything but 1 up to kOne.
std::vector<double> worst_ulps(const std::vector<Kernels>& all, int64_t first, int64_t last) {
  static const std::vector<float> ones(kChunk, 1.0f);
  std::vector<float> x(kChunk), y(kChunk);
  for (int64_t n = 0; n < kChunk; ++n) {
    x[n] = from_bits(std::min(last, first + n * kStride));
  }
  std::vector<double> truth, per_ulp, worst;
  const bool is_one = std::fabs(x.back()) <= kOne;
  for (size_t n = 0; n < x.size() && !is_one; ++n) {
    truth.push_back(std::exp2(static_cast<double>(x[n])));
    // 2^23 / the binade of truth
    const uint64_t exponent = std::bit_cast<uint64_t>(truth[n]) >> 52;
    per_ulp.push_back(std::bit_cast<double>((2046 + 23 - exponent) << 52));
  }
  for (const Kernels& target : all) {
    target.exponentials(x.data(), kChunk, y.data());
    double most = is_one && y != ones ? HUGE_VAL : 0.0;
    for (size_t n = 0; n < truth.size(); ++n) {
      const double error = std::fabs(static_cast<double>(y[n]) - truth[n]) * per_ulp[n];
      if (!(error <= most)) most = error == error ? error : HUGE_VAL;
    }
    worst.push_back(most);
  }
  return worst;
}

TEST(Exp2, IsWithinOneUlp) {
  const std::vector<Kernels> all = usable_kernels();
  std::vector<double> most(all.size());
  std::vector<float> at(all.size());
  std::mutex mutex;
  Stopper stopper(nullptr);
  for (const auto& [from, to] : {std::pair{0.0f, kHighest}, std::pair{-0.0f, kLowest}}) {
    const int64_t first = bits(from), last = bits(to), step = kChunk * kStride;
    parallel_for((last - first) / step + 1, thread_count(0), stopper, [&](int64_t n, int) {
      const std::vector<double> worst = worst_ulps(all, first + n * step, last);
      const std::scoped_lock lock(mutex);
      for (size_t t = 0; t < all.size(); ++t) {
        if (worst[t] <= most[t]) continue;
        most[t] = worst[t];
        at[t] = from_bits(first + n * step);
      }
    });
  }
  for (size_t t = 0; t < all.size(); ++t) {
    EXPECT_LE(most[t], most_ulps(all[t]))
        << all[t].name << ", among " << kChunk << " floats from " << at[t];
    RecordProperty(all[t].name, std::to_string(most[t]));
  }
}

// The polynomial changes its piece at n + 1/2.
TEST(Exp2, NeverFallsAtTheBordersOfItsPieces) {
  constexpr int kAround = 200;
  for (const Kernels& target : usable_kernels()) {
    for (float border = kLowest + 0.5f; border < kHighest; border += 1.0f) {
      std::vector<float> x = {border};
      for (int n = 0; n < kAround; ++n) x.push_back(std::nextafter(x.back(), HUGE_VALF));
      std::vector<float> below = {border};
      for (int n = 0; n < kAround; ++n) below.push_back(std::nextafter(below.back(), -HUGE_VALF));
      const std::vector<float> right = results(target, x), left = results(target, below);
      EXPECT_LE(*std::max_element(left.begin(), left.end()),
                *std::min_element(right.begin(), right.end()))
          << target.name << " at " << border;
    }
  }
}

TEST(Exp2, IsExactAtIntegersAndZero) {
  for (const Kernels& target : usable_kernels()) {
    for (int n = static_cast<int>(kLowest); n <= 127; ++n) {
      EXPECT_EQ(results(target, {static_cast<float>(n)})[0], std::ldexp(1.0f, n)) << target.name;
    }
    EXPECT_EQ(results(target, {-0.0f})[0], 1.0f) << target.name;
  }
}

TEST(Exp2, IsZeroBelowItsRange) {
  std::vector<float> x = {std::nextafter(kLowest, -HUGE_VALF),
                          -126.0f,
                          -149.0f,
                          -150.0f,
                          -1e4f,
                          -0x1p23f,
                          -0x1.8p23f,
                          -0x1p24f,
                          -1e20f,
                          std::numeric_limits<float>::lowest(),
                          -HUGE_VALF};
  for (float from = -126.0f; from > -1e30f; from *= 1.01f) x.push_back(from);
  for (const Kernels& target : usable_kernels()) {
    const std::vector<float> y = results(target, x);
    for (size_t n = 0; n < x.size(); ++n) {
      EXPECT_EQ(bits(y[n]), 0) << target.name << " at " << x[n] << ": " << y[n];
    }
  }
}

TEST(Exp2, KeepsEveryNaN) {
  std::vector<float> x;
  for (const int64_t sign : {0LL, 0x80000000LL}) {
    for (int64_t payload = 1; payload < 0x800000; payload += payload < 64 ? 1 : 64) {
      x.push_back(from_bits(sign | 0x7F800000 | payload));
    }
    x.push_back(from_bits(sign | 0x7FFFFFFF));
  }
  for (const Kernels& target : usable_kernels()) {
    const std::vector<float> y = results(target, x);
    for (size_t n = 0; n < x.size(); ++n) {
      ASSERT_TRUE(std::isnan(y[n])) << target.name << " at payload " << std::hex << bits(x[n]);
    }
  }
}

}  // namespace
}  // namespace relpos
