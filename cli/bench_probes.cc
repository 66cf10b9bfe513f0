// Compiled once for each SIMD target.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench_probes.cc"
// The targets of the tile kernels.
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif
#include "bench_probes.h"

#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

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

std::vector<Probes> compiled_probes() {
  std::vector<Probes> all;
#if HWY_TARGETS & HWY_AVX3
  all.push_back(N_AVX3::probes("avx512"));
#endif
#if HWY_TARGETS & HWY_AVX2
  all.push_back(N_AVX2::probes("avx2"));
#endif
#if HWY_TARGETS & HWY_NEON
  all.push_back(N_NEON::probes("neon"));
#endif
#if HWY_TARGETS & HWY_EMU128
  all.push_back(N_EMU128::probes("baseline"));
#endif
#if HWY_TARGETS & HWY_SCALAR
  all.push_back(N_SCALAR::probes("baseline"));
#endif
  return all;
}

}  // namespace relpos::cli
#endif
