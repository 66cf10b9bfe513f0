// The units of x86-64 CPUs: AMX's tdpbf16ps and AVX-512's vdpbf16ps.
#include "base/sanitized.h"
#include "kernels/block/matrix_unit.h"

// MemorySanitizer wants every lane of an instruction's operands written, also those that nobody reads. What it
// watches are the emulations, which compute number by number.
#if defined(__x86_64__) && !defined(RELPOS_MEMORY_SANITIZER)

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cpu.h"
#include "kernels/units/tiles.h"

#ifdef __clang__
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx512bf16"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512vl,avx512bw,avx512dq,avx512bf16")
#endif

namespace relpos {
namespace {

struct Dots {
  using Sum = __m512;
  using Pairs = __m512bh;

  static Sum zero() { return _mm512_setzero_ps(); }
  static Sum load(const float* from) { return _mm512_loadu_ps(from); }
  static void store(Sum sum, float* to) { _mm512_storeu_ps(to, sum); }
  static Pairs pairs(const uint16_t* from) { return (Pairs)_mm512_loadu_si512(from); }
  static Pairs pair(const uint16_t* from) {
    int both;
    __builtin_memcpy(&both, from, sizeof both);
    return (Pairs)_mm512_set1_epi32(both);
  }
  static Sum add(Sum sum, Pairs a, Pairs b) { return _mm512_dpbf16_ps(sum, a, b); }
};

#include "kernels/units/dots-inl.h"

void narrow(int64_t rows, int64_t n, const float* from, int64_t stride, uint16_t* to,
            int64_t to_stride) {
  for (int64_t row = 0; row < rows; ++row, from += stride, to += to_stride) {
    for (int64_t x = 0; x < n; x += 32) {
      const __m512 first = _mm512_loadu_ps(from + x), second = _mm512_loadu_ps(from + x + 16);
      _mm512_storeu_si512(to + x, (__m512i)_mm512_cvtne2ps_pbh(second, first));
    }
  }
}

void narrow_pairs(int64_t rows, int64_t n, const float* from, int64_t stride, uint16_t* to) {
  alignas(64) uint16_t order[32];
  for (int x = 0; x < 32; ++x) order[x] = static_cast<uint16_t>(x % 2 * 16 + x / 2);
  const __m512i turns = _mm512_load_si512(order);
  for (int64_t row = 0; row < rows; row += 2, from += 2 * stride) {
    for (int64_t x = 0; x < n; x += 16, to += 32) {
      const __m512 even = _mm512_loadu_ps(from + x), odd = _mm512_loadu_ps(from + stride + x);
      const auto both = (__m512i)_mm512_cvtne2ps_pbh(odd, even);
      _mm512_storeu_si512(to, _mm512_permutexvar_epi16(turns, both));
    }
  }
}

// Vector `half` of the pairs of two vectors.
__m512i pairs_of(__m512i first, __m512i second, int half) {
  alignas(64) uint16_t order[32];
  for (int x = 0; x < 32; ++x) order[x] = static_cast<uint16_t>(x % 2 * 32 + half * 16 + x / 2);
  return _mm512_permutex2var_epi16(first, _mm512_load_si512(order), second);
}

void pair_rows(int64_t rows, int64_t n, const uint16_t* from, int64_t stride, uint16_t* to) {
  for (int64_t row = 0; row < rows; row += 2, from += 2 * stride) {
    for (int64_t x = 0; x < n; x += 32) {
      const __mmask32 own = n - x < 32 ? 0xFFFFU : ~0U;
      const __m512i first = _mm512_maskz_loadu_epi16(own, from + x);
      const __m512i second = _mm512_maskz_loadu_epi16(row + 1 < rows ? own : 0, from + stride + x);
      _mm512_storeu_si512(to, pairs_of(first, second, 0));
      if (n - x >= 32) _mm512_storeu_si512(to + 32, pairs_of(first, second, 1));
      to += n - x < 32 ? 32 : 64;
    }
  }
}

bool finite(int64_t n, const uint16_t* from) {
  const __m512i exponent = _mm512_set1_epi16(0x7F80);
  __mmask32 found = 0;
  for (int64_t x = 0; x < n; x += 32) {
    const __mmask32 own = n - x < 32 ? (1U << (n - x)) - 1 : ~0U;
    const __m512i bits = _mm512_and_si512(_mm512_maskz_loadu_epi16(own, from + x), exponent);
    found |= _mm512_cmpeq_epi16_mask(bits, exponent);
  }
  return found == 0;
}

}  // namespace
}  // namespace relpos

#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace relpos {
namespace {

void nothing() {}

// Linux gives the tiles' state to a process that asks for it, unless a signal stack is too small.
bool has_amx() {
  constexpr int kHasPermission = 0x1022, kAskPermission = 0x1023, kTileData = 18;
  if (!this_cpu().amx_bf16) return false;
  unsigned long permitted = 0;
  return syscall(SYS_arch_prctl, kAskPermission, kTileData) == 0 &&
         syscall(SYS_arch_prctl, kHasPermission, &permitted) == 0 &&
         (permitted & (1UL << kTileData)) != 0;
}

}  // namespace

const std::vector<MatrixUnit>& usable_units() {
  static const std::vector<MatrixUnit> units = [] {
    std::vector<MatrixUnit> all;
    if (has_amx()) {
      all.push_back({.name = "amx",
                     .begin = AmxTiles::configure,
                     .end = AmxTiles::release,
                     .gemm = tile_gemm<AmxTiles>,
                     .multiply = multiply_tile<AmxTiles>,
                     .put = put_tile<AmxTiles>,
                     .rounds_vectors = true,
                     .scales_vectors = true,
                     .narrow = narrow,
                     .narrow_pairs = narrow_pairs,
                     .pair_rows = pair_rows,
                     .finite = finite});
    }
    if (this_cpu().avx512_bf16) {
      all.push_back({.name = "avx512_bf16",
                     .begin = nothing,
                     .end = nothing,
                     .gemm = dot_gemm,
                     .rounds_vectors = true,
                     .narrow = narrow,
                     .narrow_pairs = narrow_pairs,
                     .pair_rows = pair_rows,
                     .finite = finite});
    }
    return all;
  }();
  return units;
}

}  // namespace relpos

#else

namespace relpos {

const std::vector<MatrixUnit>& usable_units() {
  static const std::vector<MatrixUnit> none;
  return none;
}

}  // namespace relpos

#endif
