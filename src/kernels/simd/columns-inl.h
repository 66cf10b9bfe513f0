// Conversion between products over runs of distances, stored by key, and pairs, stored by row, for the
// SIMD target that includes this. Lanes are rows for the permute, and blocks of 4 keys are transposed.
#if defined(RELPOS_COLUMNS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RELPOS_COLUMNS_INL_H_
#undef RELPOS_COLUMNS_INL_H_
#else
#define RELPOS_COLUMNS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>

#include "base/buffer.h"
#include "kernels/simd/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace relpos {
namespace HWY_NAMESPACE {
namespace {

constexpr int kQuad = 4;
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
  V sum = hn::Zero(d);
  int64_t c = 0;
  for (; c + kN <= n; c += kN) sum = hn::MulAdd(hn::LoadU(d, x + c), hn::Zero(d), sum);
  float rest = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; c < n; ++c) rest += x[c] * 0.0f;
  return rest == 0.0f;
}

#if HWY_TARGET != HWY_SCALAR
// to[x, key] for 4 keys and dims [x, x + kN): transposed in blocks of 4 x 4.
HWY_INLINE void transpose_quad(const V (&rows)[kQuad], float* to) {
  const F d;
  const hn::RepartitionToWide<hn::RebindToUnsigned<F>> pairs;
  const auto wide = [&](V v) HWY_ATTR { return hn::BitCast(pairs, v); };
  const auto low = wide(hn::InterleaveLower(d, rows[0], rows[1]));
  const auto high = wide(hn::InterleaveUpper(d, rows[0], rows[1]));
  const auto low2 = wide(hn::InterleaveLower(d, rows[2], rows[3]));
  const auto high2 = wide(hn::InterleaveUpper(d, rows[2], rows[3]));
  HWY_ALIGN_MAX float dims[kQuad][kN];
  hn::Store(hn::BitCast(d, hn::InterleaveLower(pairs, low, low2)), d, dims[0]);
  hn::Store(hn::BitCast(d, hn::InterleaveUpper(pairs, low, low2)), d, dims[1]);
  hn::Store(hn::BitCast(d, hn::InterleaveLower(pairs, high, high2)), d, dims[2]);
  hn::Store(hn::BitCast(d, hn::InterleaveUpper(pairs, high, high2)), d, dims[3]);
  for (int64_t block = 0; block < kN; block += kQuad) {
    for (int n = 0; n < kQuad; ++n) {
      hwy::CopyBytes<kQuad * sizeof(float)>(dims[n] + block, to + (block + n) * kTile);
    }
  }
}
#endif

bool transpose(const float* rows, int64_t stride, int64_t keys, int64_t D, float* to) {
  const F d;
  V sum = hn::Zero(d);
  float rest = 0.0f;
  const int64_t end = round_up(keys, kQuad), padded = round_up(keys, kLanes);
  if (end < padded) {
    for (int64_t x = 0; x < D; ++x) std::fill(to + x * kTile + end, to + x * kTile + padded, 0.0f);
  }
  for (int64_t key = 0; key < end; key += kQuad) {
    const int64_t count = std::min<int64_t>(keys - key, kQuad);
    const float* from = rows + key * stride;
    int64_t x = 0;
#if HWY_TARGET != HWY_SCALAR
    for (; x + kN <= D; x += kN) {
      V lanes[kQuad];
      for (int n = 0; n < kQuad; ++n) {
        lanes[n] = n < count ? hn::LoadU(d, from + n * stride + x) : hn::Zero(d);
        sum = hn::MulAdd(lanes[n], hn::Zero(d), sum);
      }
      transpose_quad(lanes, to + x * kTile + key);
    }
#endif
    for (; x < D; ++x) {
      for (int64_t n = 0; n < kQuad; ++n) {
        const float value = n < count ? from[n * stride + x] : 0.0f;
        to[x * kTile + key + n] = value;
        rest += value * 0.0f;
      }
    }
  }
  return hn::GetLane(hn::SumOfLanes(d, sum)) + rest == 0.0f;
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
