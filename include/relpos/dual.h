// Dual numbers: a value with its derivatives with respect to N variables, so that a formula computes
// its own gradient. exp, ln, pow, sqrt and abs take double and Dual. A formula outside of namespace
// relpos calls them as relpos::abs(x): abs(x) of a double may be the int's.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>

#include "relpos/export.h"

RELPOS_EXPORT_BEGIN
namespace relpos {

template <size_t N>
struct Dual {
  double value = 0.0;
  std::array<double, N> slope{};  // derivatives of `value`

  Dual() = default;
  Dual(double v) : value(v) {}  // NOLINT: a number is a dual number of slope 0

  // f(*this), where f has this value and this derivative.
  Dual chain(double f, double derivative) const {
    Dual result(f);
    for (size_t n = 0; n < N; ++n) result.slope[n] = derivative * slope[n];
    return result;
  }
  Dual operator-() const { return chain(-value, -1.0); }
  friend Dual operator+(const Dual& a, const Dual& b) {
    return join(a, b, a.value + b.value, 1, 1);
  }
  friend Dual operator-(const Dual& a, const Dual& b) {
    return join(a, b, a.value - b.value, 1, -1);
  }
  friend Dual operator*(const Dual& a, const Dual& b) {
    return join(a, b, a.value * b.value, b.value, a.value);
  }
  friend Dual operator/(const Dual& a, const Dual& b) {
    return join(a, b, a.value / b.value, 1 / b.value, -a.value / (b.value * b.value));
  }

 private:
  static Dual join(const Dual& a, const Dual& b, double value, double by_a, double by_b) {
    Dual result(value);
    for (size_t n = 0; n < N; ++n) result.slope[n] = by_a * a.slope[n] + by_b * b.slope[n];
    return result;
  }
};

inline double exp(double x) { return std::exp(x); }
inline double ln(double x) { return std::log(x); }
inline double sqrt(double x) { return std::sqrt(x); }
inline double abs(double x) { return std::fabs(x); }
inline double pow(double base, double exponent) { return std::pow(base, exponent); }

template <size_t N>
Dual<N> exp(const Dual<N>& x) {
  return x.chain(std::exp(x.value), std::exp(x.value));
}
template <size_t N>
Dual<N> ln(const Dual<N>& x) {
  return x.chain(std::log(x.value), 1 / x.value);
}
template <size_t N>
Dual<N> sqrt(const Dual<N>& x) {
  return x.chain(std::sqrt(x.value), 0.5 / std::sqrt(x.value));
}
// The derivative at 0 is 0.
template <size_t N>
Dual<N> abs(const Dual<N>& x) {
  return x.chain(std::fabs(x.value), x.value == 0.0 ? 0.0 : std::copysign(1.0, x.value));
}
// The derivative of 0^x with respect to x is 0.
template <size_t N>
Dual<N> pow(double base, const Dual<N>& exponent) {
  const double power = std::pow(base, exponent.value);
  return exponent.chain(power, base > 0 ? power * std::log(base) : 0.0);
}

}  // namespace relpos
RELPOS_EXPORT_END
