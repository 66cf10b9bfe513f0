#include "kernels/softmax_state.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "kernels/block.h"

namespace relpos {

SoftmaxState SoftmaxState::of(double reference, double sum) noexcept {
  if (sum == 0.0) return {-HUGE_VAL, 1.0};
  if (!std::isfinite(reference) || !std::isfinite(sum)) return {reference, sum};
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
