#include "kernels/decode_tiles.h"

#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/decode_tiles.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "kernels/block.h"
#include "kernels/simd-inl.h"
#include "kernels/targets.h"

HWY_BEFORE_NAMESPACE();
namespace relpos {
namespace HWY_NAMESPACE {
namespace {

// Accumulators of a register tile, of dots and of columns.
constexpr int kSums = HWY_TARGET == HWY_AVX2 ? 8 : 16;
// A row keeps its reference until a score passes it by this much (block.h's units).
constexpr float kSlack = 60.0f;
// kVectors vectors from the columns at `from`.
struct Float32 {
  using T = float;
  static constexpr int kVectors = 1;
  static HWY_INLINE void load(const T* from, V* to) { to[0] = hn::LoadU(F(), from); }
};
struct Float16 {
  using T = hwy::float16_t;
  static constexpr int kVectors = 1;
  static HWY_INLINE void load(const T* from, V* to) {
    const hn::Rebind<hwy::float16_t, F> half;
    to[0] = hn::PromoteTo(F(), hn::LoadU(half, from));
  }
};
struct BFloat16 {  // even columns, then odd ones
  using T = uint16_t;
  static constexpr int kVectors = 2;
  static HWY_INLINE void load(const T* from, V* to) {
    const F d;
    const hn::RebindToUnsigned<F> du;
#if HWY_TARGET == HWY_SCALAR
    uint32_t pair;
    hwy::CopyBytes<sizeof pair>(from, &pair);
    const auto pairs = hn::Set(du, pair);
#else
    const auto pairs = hn::LoadU(du, reinterpret_cast<const uint32_t*>(from));
#endif
    to[0] = hn::BitCast(d, hn::ShiftLeft<16>(pairs));
    to[1] = hn::BitCast(d, hn::And(pairs, hn::Set(du, 0xFFFF0000U)));
  }
};

template <typename Load>
HWY_INLINE const typename Load::T* row_of(const TensorRows& rows, int64_t c) {
  return static_cast<const typename Load::T*>(rows.data) + c * rows.stride;
}

// Lane n of the result is the sum of the lanes of x[n]; N is the number of lanes.
template <int N>
HWY_INLINE V sums_of_lanes(const V* x) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (N > 1) {
    const F d;
    const V a = sums_of_lanes<N / 2>(x), b = sums_of_lanes<N / 2>(x + N / 2);
    return hn::Add(hn::ConcatEven(d, b, a), hn::ConcatOdd(d, b, a));
  }
#endif
  return x[0];
}

// Rows are fetched this far ahead, into L2: without it 60 % as fast, and into L1 no faster than without.
constexpr int64_t kAhead = 8192;
HWY_INLINE void fetch(const void* from, int64_t bytes) {
  const auto first = reinterpret_cast<uintptr_t>(from) + kAhead;
  for (int64_t x = 0; x < bytes; x += 64) {
    __builtin_prefetch(reinterpret_cast<const void*>(first + static_cast<uintptr_t>(x)), 0, 2);
  }
}

// Products summed in one lane before they join the rest (rounding grows with the chain).
constexpr int64_t kRowChain = 32;

// s[R, kTile] (+)= <q[r], k[c]> over columns [from, to).
template <typename Load, int R>
HWY_INLINE void dots(const TensorRows& k, int64_t from, int64_t to, const float* HWY_RESTRICT q,
                     int64_t ldq, float* HWY_RESTRICT s) {
  constexpr int kKeys = kSums / R;
  constexpr int kVectors = Load::kVectors;
  const F d;
  for (int64_t c = 0; c < kTile; c += kKeys) {
    V sum[kSums];
#pragma GCC unroll 16
    for (int n = 0; n < kSums; ++n) sum[n] = hn::Zero(d);
    const typename Load::T* row[kKeys];
#pragma GCC unroll 16
    for (int j = 0; j < kKeys; ++j) {
      row[j] = row_of<Load>(k, std::min(c + j, k.count - 1));
      fetch(row[j] + from, (to - from) * static_cast<int64_t>(sizeof(*row[j])));
    }
    for (int64_t x = from; x < to; x += kVectors * kN) {
      V query[R][kVectors];
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) query[r][v] = hn::LoadU(d, q + r * ldq + x + v * kN);
      }
#pragma GCC unroll 16
      for (int j = 0; j < kKeys; ++j) {
        V key[kVectors];
        Load::load(row[j] + x, key);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
          for (int v = 0; v < kVectors; ++v) {
            sum[r * kKeys + j] = hn::MulAdd(query[r][v], key[v], sum[r * kKeys + j]);
          }
        }
      }
    }
    HWY_ALIGN_MAX float all[kSums];
#pragma GCC unroll 16
    for (int n = 0; n < kSums; n += static_cast<int>(kN)) {
      hn::Store(sums_of_lanes<static_cast<int>(kN)>(sum + n), d, all + n);
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      float* at = s + r * kTile + c;
      for (int j = 0; from > 0 && j < kKeys; ++j) all[r * kKeys + j] += at[j];
      hwy::CopyBytes<kKeys * sizeof(float)>(all + r * kKeys, at);
    }
  }
}

// o[R, C vectors] += sum over the listed keys of p[r, key] v[key], from column x on.
template <typename Load, int R, int C>
HWY_INLINE void columns(const TensorRows& rows, int64_t x, const float* HWY_RESTRICT p,
                        const uint8_t* HWY_RESTRICT keys, int count, float* HWY_RESTRICT o,
                        int64_t ldo) {
  const F d;
  V sum[R][C];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < C; ++v) sum[r][v] = hn::Zero(d);
  }
  for (int n = 0; n < count; ++n) {
    const int64_t key = keys[n];
    const auto* row = row_of<Load>(rows, key) + x;
    if (x == 0) fetch(row, rows.dims * static_cast<int64_t>(sizeof(*row)));
    V value[C];
#pragma GCC unroll 16
    for (int v = 0; v < C; v += Load::kVectors) Load::load(row + v * kN, value + v);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const V weight = hn::Set(d, p[r * kTile + key]);
#pragma GCC unroll 16
      for (int v = 0; v < C; ++v) sum[r][v] = hn::MulAdd(weight, value[v], sum[r][v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < C; ++v) {
      float* at = o + r * ldo + x + v * kN;
      hn::StoreU(hn::Add(hn::LoadU(d, at), sum[r][v]), d, at);
    }
  }
}

template <typename Load, int R>
HWY_INLINE void weighted_rows(const TensorRows& v, const float* p, const uint8_t* keys, int count,
                              float* o, int64_t ldo) {
  constexpr int kMost = std::min(kSums / R, 8);
  int64_t x = 0;
  for (; x + kMost * kN <= v.dims; x += kMost * kN) {
    columns<Load, R, kMost>(v, x, p, keys, count, o, ldo);
  }
  for (; x + 2 * kN <= v.dims; x += 2 * kN) {
    columns<Load, R, 2>(v, x, p, keys, count, o, ldo);
  }
  if constexpr (Load::kVectors == 1) {
    for (; x < v.dims; x += kN) columns<Load, R, 1>(v, x, p, keys, count, o, ldo);
  }
}

// Calls f(load, R, first row) for rows in groups of R = 4, 2 and 1.
template <typename Function>
HWY_INLINE void for_row_groups(DType dtype, int rows, const Function& f) {
  const auto run = [&](auto load) HWY_ATTR {
    int row = 0;
    for (; row + 4 <= rows; row += 4) f(load, std::integral_constant<int, 4>(), row);
    for (; row + 2 <= rows; row += 2) f(load, std::integral_constant<int, 2>(), row);
    for (; row < rows; ++row) f(load, std::integral_constant<int, 1>(), row);
  };
  if (dtype == DType::kBFloat16) return run(BFloat16());
  if (dtype == DType::kFloat16) return run(Float16());
  run(Float32());
}

void scores(const TensorRows& k, int rows, const float* q, int64_t ldq, float* s) {
  for_row_groups(k.dtype, rows, [&](auto load, auto r, int row) HWY_ATTR {
    for (int64_t x = 0; x < k.dims; x += kRowChain * kN) {
      dots<decltype(load), decltype(r)::value>(k, x, std::min(x + kRowChain * kN, k.dims),
                                               q + row * ldq, ldq, s + row * kTile);
    }
  });
}

void values(const TensorRows& v, int rows, const float* p, const uint8_t* keys, int count, float* o,
            int64_t ldo) {
  for_row_groups(v.dtype, rows, [&](auto load, auto r, int row) HWY_ATTR {
    for (int n = 0; n < count; n += kRowChain) {
      weighted_rows<decltype(load), decltype(r)::value>(
          v, p + row * kTile, keys + n, std::min<int>(kRowChain, count - n), o + row * ldo, ldo);
    }
  });
}

HWY_INLINE V sloped(const Slope& slope, V delta) {
  const F d;
  const auto past = hn::Lt(delta, hn::Zero(d));
  const V high = hn::IfThenElse(past, hn::Set(d, slope.past[0]), hn::Set(d, slope.future[0]));
  const V low = hn::IfThenElse(past, hn::Set(d, slope.past[1]), hn::Set(d, slope.future[1]));
#if HWY_TARGET == HWY_SCALAR  // no fused product: rounding twice would show
  return hn::Set(d, static_cast<float>((static_cast<double>(high.raw) + low.raw) *
                                       static_cast<double>(delta.raw)));
#else
  return hn::MulAdd(high, delta, hn::Mul(low, delta));
#endif
}

// The row's reference after scores x; returns by how much it rises above that of earlier sums.
HWY_NOINLINE float move_reference(const V* x, float& m) {
  const F d;
  const float old = m;
  V top = x[0];
  bool ordered = true;
  for (int v = 0; v < kTileVectors; ++v) {
    ordered = ordered && hn::AllTrue(d, hn::Eq(x[v], x[v]));
    top = hn::Max(top, x[v]);
  }
  if (!ordered) {  // the row becomes NaN whatever its reference is
    if (old == -HUGE_VALF) m = 0.0f;
    return 0.0f;
  }
  m = hn::GetLane(hn::MaxOfLanes(d, top));
  return old == -HUGE_VALF ? 0.0f : m - old;
}

RowFactors softmax(const RowTerms& terms, float* s, float& m, float* l) {
  const F d;
  V x[kTileVectors];
  auto within = hn::Le(hn::Zero(d), hn::Zero(d));
  const V most = hn::Set(d, m + kSlack);
  for (int v = 0; v < kTileVectors; ++v) {
    V sum = hn::LoadU(d, s + v * kN);
    for (int n = 0; n < terms.slope_count; ++n) {
      const V delta = hn::Add(hn::Set(d, terms.delta), hn::Iota(d, static_cast<float>(v * kN)));
      sum = hn::Add(sum, sloped(terms.slopes[n], delta));
    }
    for (int n = 0; n < terms.count; ++n) sum = hn::Add(sum, hn::LoadU(d, terms.cells[n] + v * kN));
    if (terms.visible != ~uint64_t{0}) {
      sum = hn::IfThenElse(lanes_of(terms.visible, v * kN), sum, hn::Set(d, -HUGE_VALF));
    }
    within = hn::And(within, hn::Le(sum, most));
    x[v] = sum;
  }
  RowFactors factors;
  if (m == -HUGE_VALF || !hn::AllTrue(d, within)) {
    const float rise = move_reference(x, m);
    if (m == -HUGE_VALF) {
      std::fill_n(s, kTile, 0.0f);
      return factors;
    }
    const Rescaling rescaled(rise);
    for (int64_t c = 0; rise != 0.0f && c < kLanes; c += kN) {
      hn::StoreU(rescaled(hn::LoadU(d, l + c)), d, l + c);
    }
    factors = {hn::GetLane(rescaled.first), hn::GetLane(rescaled.second)};
  }
  const V reference = hn::Set(d, m);
  for (int v = 0; v < kTileVectors; ++v) {
    const V weight = exp2(hn::Sub(x[v], reference));
    float* sums = l + (v * kN) % kLanes;
    hn::StoreU(hn::Add(hn::LoadU(d, sums), weight), d, sums);
    hn::StoreU(weight, d, s + v * kN);
  }
  return factors;
}

}  // namespace

DecodeKernels decode_kernels(const char* name) { return {name, kN, scores, softmax, values}; }

}  // namespace HWY_NAMESPACE
}  // namespace relpos
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace relpos {

std::vector<DecodeKernels> compiled_decode_kernels() {
  return RELPOS_EVERY_TARGET(DecodeKernels, decode_kernels);
}

const DecodeKernels& decode_kernels() {
  static const DecodeKernels kernels = of_target(compiled_decode_kernels());
  return kernels;
}

void DecodeKernels::arrange(DType dtype, int64_t n, float* row) const {
  if (dtype != DType::kBFloat16) return;
  float block[2 * kLanes];
  for (int64_t x = 0; x < n; x += 2 * lanes) {
    std::copy_n(row + x, 2 * lanes, block);
    for (int64_t c = 0; c < lanes; ++c) {
      row[x + c] = block[2 * c];
      row[x + lanes + c] = block[2 * c + 1];
    }
  }
}

void DecodeKernels::restore(DType dtype, int64_t n, float* row) const {
  if (dtype != DType::kBFloat16) return;
  float block[2 * kLanes];
  for (int64_t x = 0; x < n; x += 2 * lanes) {
    std::copy_n(row + x, 2 * lanes, block);
    for (int64_t c = 0; c < lanes; ++c) {
      row[x + 2 * c] = block[c];
      row[x + 2 * c + 1] = block[lanes + c];
    }
  }
}

}  // namespace relpos
#endif
