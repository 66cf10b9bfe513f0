// Between key-major products over runs of distances and row-major pairs, for the SIMD target that
// includes this: lanes run along rows for the permute, and blocks of 4 keys are transposed.
#if defined(RELPOS_COLUMNS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RELPOS_COLUMNS_INL_H_
#undef RELPOS_COLUMNS_INL_H_
#else
#define RELPOS_COLUMNS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>

#include "kernels/simd/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace relpos {
namespace HWY_NAMESPACE {
namespace {

using D32 = hn::RebindToSigned<F>;

// runs[0, kN) does not ascend, so all of them lie within kN of the last.
HWY_INLINE V read_runs(const float* products, const int32_t* runs) {
  const int32_t lowest = runs[kN - 1];
  const auto lane = hn::Sub(hn::LoadU(D32(), runs), hn::Set(D32(), lowest));
  return hn::TableLookupLanes(hn::LoadU(F(), products + lowest), hn::IndicesFromVec(F(), lane));
}

// products[runs[lane]] += x[lane].
HWY_INLINE void add_runs(V x, const int32_t* runs, float* products) {
  const F d;
  const int32_t lowest = runs[kN - 1], spread = runs[0] - lowest;
  if (spread == 0) {
    products[lowest] += hn::GetLane(hn::SumOfLanes(d, x));
  } else if (spread == static_cast<int32_t>(kN) - 1) {
    hn::StoreU(hn::Add(hn::LoadU(d, products + lowest), hn::Reverse(d, x)), d, products + lowest);
  } else {
    HWY_ALIGN_MAX float lanes[kN];
    hn::Store(x, d, lanes);
    for (int64_t n = 0; n < kN; ++n) products[runs[n]] += lanes[n];
  }
}

void expand(const float* from, const int32_t* index, int64_t n, float* to) {
  int64_t c = 0;
  for (; c + kN <= n; c += kN) {
    const auto lane = hn::Sub(hn::LoadU(D32(), index + c), hn::Set(D32(), index[c]));
    const V near = hn::LoadU(F(), from + index[c]);
    hn::StoreU(hn::TableLookupLanes(near, hn::IndicesFromVec(F(), lane)), F(), to + c);
  }
  for (; c < n; ++c) to[c] = from[index[c]];
}

bool finite(const float* x, int64_t n) {
  const F d;
  constexpr int kChains = 4;  // one would wait for itself
  V sums[kChains];
  RELPOS_UNROLLED(chain, kChains) sums[chain] = hn::Zero(d);
  int64_t c = 0;
  for (; c + kChains * kN <= n; c += kChains * kN) {
    RELPOS_UNROLLED(chain, kChains) {
      sums[chain] = hn::MulAdd(hn::LoadU(d, x + c + chain * kN), hn::Zero(d), sums[chain]);
    }
  }
  for (; c + kN <= n; c += kN) sums[0] = hn::MulAdd(hn::LoadU(d, x + c), hn::Zero(d), sums[0]);
  const V sum = hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3]));
  float rest = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; c < n; ++c) rest += x[c] * 0.0f;
  return rest == 0.0f;
}

void read_columns(int rows, const float* products, int64_t stride, const int32_t* runs,
                  float* extra) {
  const F d;
  HWY_ALIGN_MAX float quad[kQuad * kN];
  for (int row = 0; row < rows; row += static_cast<int>(kN)) {
    const int count = std::min(static_cast<int>(kN), rows - row);
    for (int64_t key = 0; key < kTile; key += kQuad) {
      V lanes[kQuad];
      for (int n = 0; n < kQuad; ++n) {
        lanes[n] = read_runs(products + (key + n) * stride, runs + kTile - 1 - key - n + row);
      }
      hn::StoreInterleaved4(lanes[0], lanes[1], lanes[2], lanes[3], d, quad);
      const hn::CappedTag<float, kQuad> d4;
      constexpr int kStep = static_cast<int>(hn::MaxLanes(hn::CappedTag<float, kQuad>()));
      for (int r = 0; r < count; ++r) {
        float* to = extra + (row + r) * kTile + key;
        for (int n = 0; n < kQuad; n += kStep) {
          const auto sum = hn::Add(hn::Load(d4, to + n), hn::Load(d4, quad + r * kQuad + n));
          hn::Store(sum, d4, to + n);
        }
      }
    }
  }
}

void add_columns(int rows, const float* ds, const int32_t* runs, float* products, int64_t stride) {
  const F d;
  HWY_ALIGN_MAX float quad[kQuad * kN];
  for (int row = 0; row < rows; row += static_cast<int>(kN)) {
    const int count = std::min(static_cast<int>(kN), rows - row);
    std::fill_n(quad + count * kQuad, (kN - count) * kQuad, 0.0f);
    for (int64_t key = 0; key < kTile; key += kQuad) {
      for (int r = 0; r < count; ++r) {
        hwy::CopyBytes<kQuad * sizeof(float)>(ds + (row + r) * kTile + key, quad + r * kQuad);
      }
      V lanes[kQuad];
      hn::LoadInterleaved4(d, quad, lanes[0], lanes[1], lanes[2], lanes[3]);
      for (int n = 0; n < kQuad; ++n) {
        add_runs(lanes[n], runs + kTile - 1 - key - n + row, products + (key + n) * stride);
      }
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace relpos
HWY_AFTER_NAMESPACE();

#endif
