// Compiled once for each SIMD target.
#include "base/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cli/machine/probes.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "cli/machine/probes.h"

HWY_BEFORE_NAMESPACE();
namespace relpos::cli {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using F = hn::ScalableTag<float>;
using V = hn::Vec<F>;
constexpr int kSums = 12;

HWY_INLINE float total(const V* sums) {
  const F d;
  V all = sums[0];
  for (int n = 1; n < kSums; ++n) all = hn::Add(all, sums[n]);
  return hn::GetLane(hn::SumOfLanes(d, all));
}

float multiply_adds(int64_t rounds) {
  const F d;
  const V x = hn::Set(d, 0.999f), y = hn::Set(d, 0.001f);  // sums tend to 1
  V sums[kSums];
#pragma GCC unroll 12
  for (int n = 0; n < kSums; ++n) sums[n] = hn::Set(d, static_cast<float>(n));
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int n = 0; n < kSums; ++n) sums[n] = hn::MulAdd(sums[n], x, y);
  }
  return total(sums);
}

float sum(const float* x, int64_t n) {
  const F d;
  constexpr int kReads = 8;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  V sums[kSums];
#pragma GCC unroll 12
  for (int r = 0; r < kSums; ++r) sums[r] = hn::Zero(d);
  for (int64_t i = 0; i < n; i += kReads * lanes) {
#pragma GCC unroll 8
    for (int r = 0; r < kReads; ++r) sums[r] = hn::Add(sums[r], hn::Load(d, x + i + r * lanes));
  }
  return total(sums);
}

}  // namespace

Probes probes(const char* target) {
  return {target, 2 * kSums * static_cast<int64_t>(hn::Lanes(F())), multiply_adds, sum};
}

}  // namespace HWY_NAMESPACE
}  // namespace relpos::cli
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace relpos::cli {

std::vector<Probes> usable_probes() { return RELPOS_EVERY_TARGET(Probes, probes); }

}  // namespace relpos::cli
#endif
