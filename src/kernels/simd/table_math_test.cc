// Products and sigmoids in float64, on every target of this machine.
#include "base/table_math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/buffer.h"
#include "base/parallel.h"
#include "base/zeros.h"
#include "kernels/block/kernels.h"
#include "testing/questions.h"

namespace relpos {
namespace {

constexpr double kEps = std::numeric_limits<double>::epsilon();
constexpr double kLeast = 1e-306;  // exp(-x) is cut off at the largest number of float64

Buffer<double> numbers(int64_t count, int64_t seed) {
  Buffer<double> made(count);
  for (int64_t i = 0; i < count; ++i) made[i] = std::sin(static_cast<double>(i * 37 + seed));
  return made;
}

struct Sizes {
  int64_t m, n, k;
};

TEST(Wide, ProductsAreThoseOfAPlainLoop) {
  for (const Kernels& target : usable_kernels()) {
    SCOPED_TRACE(target.name);
    for (const Sizes& s : {Sizes{1, 16, 1}, {5, 32, 3}, {6, 16, 0}, {13, 48, 64}, {64, 128, 130}}) {
      for (const bool turned : {false, true}) {
        const int64_t row_stride = turned ? 1 : s.k + 2, k_stride = turned ? s.m + 3 : 1;
        const Buffer<double> a = numbers((s.m + 3) * (s.k + 2), 1);
        const Buffer<double> b = numbers((s.k + 1) * (s.n + 16), 2);
        Buffer<double> c = numbers(s.m * (s.n + 32), 3);
        const Buffer<double> before = numbers(s.m * (s.n + 32), 3);
        target.wide_gemm(s.m, s.n, s.k, a.get(), row_stride, k_stride, b.get(), s.n + 16, c.get(),
                         s.n + 32);
        for (int64_t m = 0; m < s.m; ++m) {
          for (int64_t n = 0; n < s.n + 32; ++n) {
            long double sum = before[m * (s.n + 32) + n];
            for (int64_t k = 0; n < s.n && k < s.k; ++k) {
              sum += static_cast<long double>(a[m * row_stride + k * k_stride]) *
                     b[k * (s.n + 16) + n];
            }
            EXPECT_NEAR(c[m * (s.n + 32) + n], static_cast<double>(sum),
                        kEps * static_cast<double>(s.k + 1))
                << m << ", " << n;
          }
        }
      }
    }
  }
}

TEST(Wide, SigmoidsAreThoseOfTheDefinition) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  for (const Kernels& target : usable_kernels()) {
    SCOPED_TRACE(target.name);
    Buffer<double> x(4096), y(4096);
    for (int64_t i = 0; i < x.size(); ++i) x[i] = 0.4 * static_cast<double>(i - 2048);
    x[0] = -kInf;
    x[1] = kInf;
    x[2] = std::nan("");
    x[3] = 0.0;
    x[4] = -1e4;
    x[5] = -1e10;
    x[6] = -1e300;
    target.logistic(x.get(), x.size(), y.get());
    EXPECT_NEAR(y[0], 0.0, kLeast);
    EXPECT_EQ(y[1], 1.0);
    EXPECT_TRUE(std::isnan(y[2]));
    EXPECT_EQ(y[3], 0.5);
    for (int64_t i = 4; i < x.size(); ++i) {
      const double expected = 1.0 / (1.0 + std::exp(-x[i]));
      EXPECT_NEAR(y[i], expected, 4 * kEps * expected + kLeast) << x[i];
    }
  }
}

// A product has the bits of its pieces in one, and asks between them.
TEST(Wide, LongProductsAskBetweenPieces) {
  constexpr int64_t kM = 61, kN = 1024, kK = 2048;
  const Buffer<double> a = numbers(kM * kK, 1), b = numbers(kK * kN, 2);
  Buffer<double> found(kM * kN), expected(kM * kN);
  fill_zeros(found.get(), found.size());
  fill_zeros(expected.get(), expected.size());
  const int64_t asked = questions([&](CancelToken* token) {
    const CallScope scope(token);
    add_matrix_product(kM, kN, kK, a.get(), kK, 1, b.get(), kN, found.get(), kN);
  });
  EXPECT_GE(asked, kM * kN * kK / (int64_t{1} << 24));
  tile_kernels().wide_gemm(kM, kN, kK, a.get(), kK, 1, b.get(), kN, expected.get(), kN);
  for (int64_t i = 0; i < found.size(); ++i) ASSERT_EQ(found[i], expected[i]) << i;
}

}  // namespace
}  // namespace relpos
