#include "kernels/block/softmax_state.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdint>

#include "kernels/block/log2.h"

namespace relpos {

SoftmaxState SoftmaxState::of(double reference, double sum) noexcept {
  if (sum == 0.0) return {-HUGE_VAL, 1.0};
  if (std::isnan(sum)) return {sum, sum};
  if (!std::isfinite(reference) || !std::isfinite(sum)) return {reference, sum};
  constexpr double kExact = 1 << 22;  // integers below are floats, and sums of two
  if (std::fabs(reference) < kExact) {
    const auto near = static_cast<double>(static_cast<int64_t>(reference));
    const auto bits = std::bit_cast<uint64_t>(sum * std::exp2(reference - near));
    constexpr uint64_t kOne = uint64_t{1023} << 52, kFraction = (uint64_t{1} << 52) - 1;
    const auto exponent = static_cast<double>(static_cast<int64_t>(bits >> 52) - 1023);
    return {near + exponent, std::bit_cast<double>((bits & kFraction) | kOne)};
  }
  constexpr double kMost = double{FLT_MAX};
  const double from = std::clamp(reference, -kMost, kMost);
  const double whole = std::clamp(std::floor(from + std::log2(sum)), -kMost, kMost);
  const auto to = static_cast<double>(static_cast<float>(whole));
  return {to, sum * std::exp2(from - to)};
}

double SoftmaxState::lse(double shift) const noexcept {
  return from_log2(reference + std::log2(sum)) + shift;
}

SoftmaxState read_softmax(const TensorView& softmax, int64_t b, int64_t h, int64_t i,
                          double shift) {
  if (softmax.rank == 4) return {softmax.at({b, h, i, 0}), softmax.at({b, h, i, 1})};
  const double lse = softmax.at({b, h, i});
  return SoftmaxState::of(to_log2(lse - shift), lse == -HUGE_VAL ? 0.0 : 1.0);
}

void write_softmax(const TensorView& softmax, int64_t b, int64_t h, int64_t i,
                   const SoftmaxState& state) {
  softmax.store(softmax.offset({b, h, i, 0}), state.reference);
  softmax.store(softmax.offset({b, h, i, 1}), state.sum);
}

}  // namespace relpos
