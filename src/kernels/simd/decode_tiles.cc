// A decode step's products: rows of keys and values are read where the caller keeps them, each once
// for up to four query rows.
#include "base/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/decode_tiles.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <algorithm>
#include <type_traits>

#include "kernels/block/kernels.h"
#include "kernels/simd/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace relpos {
namespace HWY_NAMESPACE {
namespace {

// Accumulators of a register tile, of dots and of columns.
constexpr int kSums = HWY_TARGET == HWY_AVX2 ? 8 : 16;
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

// s[R, keys [c, c + kSums / R)] (+)= <q[r], k[c]> over columns [from, to).
template <typename Load, int R>
HWY_INLINE void dots(const TensorRows& k, int64_t c, int64_t from, int64_t to,
                     const float* HWY_RESTRICT q, int64_t ldq, float* HWY_RESTRICT s) {
  constexpr int kKeys = kSums / R;
  constexpr int kVectors = Load::kVectors;
  const F d;
  V sum[kSums];
  RELPOS_UNROLLED(n, kSums) sum[n] = hn::Zero(d);
  const typename Load::T* row[kKeys];
  RELPOS_UNROLLED(j, kKeys) {
    row[j] = row_of<Load>(k, std::min(c + j, k.count - 1));
    fetch(row[j] + from, (to - from) * static_cast<int64_t>(sizeof(*row[j])));
  }
  for (int64_t x = from; x < to; x += kVectors * kN) {
    V query[R][kVectors];
    RELPOS_UNROLLED(r, R) {
      RELPOS_UNROLLED(v, kVectors) query[r][v] = hn::LoadU(d, q + r * ldq + x + v * kN);
    }
    RELPOS_UNROLLED(j, kKeys) {
      V key[kVectors];
      Load::load(row[j] + x, key);
      RELPOS_UNROLLED(r, R) {
        RELPOS_UNROLLED(v, kVectors) {
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
  RELPOS_UNROLLED(r, R) {
    float* at = s + r * kTile + c;
    for (int j = 0; from > 0 && j < kKeys; ++j) all[r * kKeys + j] += at[j];
    hwy::CopyBytes<kKeys * sizeof(float)>(all + r * kKeys, at);
  }
}

// o[R, C vectors] += sum over the listed keys of p[r, key] v[key], from column x on.
template <typename Load, int R, int C>
HWY_INLINE void columns(const TensorRows& rows, int64_t x, const float* HWY_RESTRICT p,
                        const uint8_t* HWY_RESTRICT keys, int count, float* HWY_RESTRICT o,
                        int64_t ldo) {
  const F d;
  V sum[R][C];
  RELPOS_UNROLLED(r, R) { RELPOS_UNROLLED(v, C) sum[r][v] = hn::Zero(d); }
  for (int n = 0; n < count; ++n) {
    const int64_t key = keys[n];
    const auto* row = row_of<Load>(rows, key) + x;
    if (x == 0) fetch(row, rows.dims * static_cast<int64_t>(sizeof(*row)));
    V value[C];
#pragma GCC unroll 16
    for (int v = 0; v < C; v += Load::kVectors) Load::load(row + v * kN, value + v);
    RELPOS_UNROLLED(r, R) {
      const V weight = hn::Set(d, p[r * kTile + key]);
      RELPOS_UNROLLED(v, C) sum[r][v] = hn::MulAdd(weight, value[v], sum[r][v]);
    }
  }
  RELPOS_UNROLLED(r, R) {
    RELPOS_UNROLLED(v, C) {
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

}  // namespace

void row_scores(const TensorRows& k, int rows, const float* q, int64_t ldq, float* s) {
  for_row_groups(k.dtype, rows, [&](auto load, auto r, int row) HWY_ATTR {
    constexpr int R = decltype(r)::value, kKeys = kSums / R;
    const int64_t end = (k.count + kKeys - 1) / kKeys * kKeys;
    for (int64_t x = 0; x < k.dims; x += kRowChain * kN) {
      const int64_t to = std::min(x + kRowChain * kN, k.dims);
      for (int64_t c = 0; c < end; c += kKeys) {
        dots<decltype(load), R>(k, c, x, to, q + row * ldq, ldq, s + row * kTile);
      }
    }
    for (int64_t n = row; n < row + R; ++n) {
      std::fill(s + n * kTile + end, s + (n + 1) * kTile, 0.0f);
    }
  });
}

void add_row_values(const TensorRows& v, int rows, const float* p, const uint8_t* keys, int count,
                    float* o, int64_t ldo) {
  for_row_groups(v.dtype, rows, [&](auto load, auto r, int row) HWY_ATTR {
    for (int n = 0; n < count; n += kRowChain) {
      weighted_rows<decltype(load), decltype(r)::value>(
          v, p + row * kTile, keys + n, std::min<int>(kRowChain, count - n), o + row * ldo, ldo);
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace relpos
HWY_AFTER_NAMESPACE();
