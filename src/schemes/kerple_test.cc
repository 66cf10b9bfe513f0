#include <gtest/gtest.h>

#include <cmath>

#include "testing/schemes.h"

namespace relpos {
namespace {

using plain::Made;

constexpr int64_t kHeads = 2;

// The bias and its derivatives with respect to p and a, both as read.
struct Value {
  double bias, by_p, by_a;
};

Value log_form(double n, double p, double a) {
  return {-p * std::log(1 + a * n), -std::log(1 + a * n), -p * n / (1 + a * n)};
}

Value power_form(double n, double p, double a) {
  return {-a * std::pow(n, p), n == 0 ? 0.0 : -a * std::pow(n, p) * std::log(n), -std::pow(n, p)};
}

void expect_formula(const char* name, bool symmetric, Value (*form)(double, double, double),
                    double most) {
  Made made(name, {{"heads", kHeads}, {"symmetric", symmetric}});
  made.distances = {-30, 20};
  made.parameters()[0].store(0, 1.5);
  made.parameters()[0].store(1, 2.5);  // above the largest power
  made.parameters()[1].store(0, 0.75);
  made.parameters()[1].store(1, -3.0);  // below the least
  const Terms terms = made.lower(kHeads);
  TermGradients gradients = TermGradients::zeros(terms);
  std::vector<double> by_p(2, 0.0), by_a(2, 0.0);
  for (int64_t h = 0; h < kHeads; ++h) {
    const double p = std::min(made.parameters()[0].load(h), most);
    const double a = std::max(made.parameters()[1].load(h), 0.01);
    for (int64_t delta = -30; delta <= 20; ++delta) {
      const double n = symmetric ? std::abs(static_cast<double>(delta))
                                 : std::max(-static_cast<double>(delta), 0.0);
      const Value expected = form(n, p, a);
      EXPECT_NEAR(plain::bias(terms.biases[0], h, delta), expected.bias, 1e-12) << delta;
      const double upstream = plain::weight(h, 0, delta);
      gradients.biases[0].table[static_cast<size_t>(h * 51 + delta + 30)] = upstream;
      by_p[static_cast<size_t>(h)] += upstream * expected.by_p;
      by_a[static_cast<size_t>(h)] += upstream * expected.by_a;
    }
  }
  const auto sums = made.pull_back(gradients);
  for (size_t h = 0; h < 2; ++h) {
    EXPECT_NEAR(sums[0][h], by_p[h], 1e-9 * std::abs(by_p[h]));
    EXPECT_NEAR(sums[1][h], by_a[h], 1e-9 * std::abs(by_a[h]));
  }
}

TEST(Kerple, BiasAndGradientsAreThePapers) {
  for (const bool symmetric : {true, false}) {
    expect_formula("kerple_log", symmetric, log_form, 1e300);
    expect_formula("kerple_power", symmetric, power_form, 2.0);
  }
}

TEST(Kerple, GoldenNumbers) {
  Made made("kerple_log", {{"heads", int64_t{1}}});
  made.distances = {-4, 0};
  made.parameters()[0].store(0, 2.0);
  made.parameters()[1].store(0, 1.0);
  const Terms terms = made.lower(1);
  const double expected[] = {0, -1.386294, -2.197225, -2.772589, -3.218876};
  for (int64_t n = 0; n <= 4; ++n) {
    EXPECT_NEAR(plain::bias(terms.biases[0], 0, -n), expected[n], 1e-6);
  }
}

TEST(Kerple, RefusesDistancesTooFarApart) {
  Made made("kerple_log", {{"heads", int64_t{8}}});
  made.distances = {0, int64_t{1} << 40};
  EXPECT_NE(plain::error_of([&] { made.lower(8); }).find("reach from 0 to 1099511627776"),
            std::string::npos);
}

}  // namespace
}  // namespace relpos
