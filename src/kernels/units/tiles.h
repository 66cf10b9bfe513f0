// Register tiles of 16 rows of 64 bytes: those of AMX, and an emulation.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/block/matrix_unit.h"
#include "kernels/units/emulated.h"

namespace relpos {

#if defined(__x86_64__)
// The instructions. They read the configuration of the thread: see configure().
struct AmxTiles {
  static constexpr bool kHolds = true;  // registers keep their tiles from call to call

  template <int kTo>
  void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTo));
  }
  // 16 rows of 64 bytes, `stride` bytes apart.
  template <int kTo>
  void load(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTo) : "memory");
  }
  template <int kFrom>
  void store(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(kFrom) : "memory");
  }
  // C += A B, B in pairs.
  template <int kC, int kA, int kB>
  void multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
  }

  static void configure() {
    struct alignas(64) Config {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    };
    static const Config config;
    asm volatile("ldtilecfg %0" ::"m"(config));
  }
  static void release() { asm volatile("tilerelease" ::: "memory"); }
};
#endif

// What the instructions compute, bit for bit. For each element of C the products of the even columns
// of A are summed in their order, those of the odd ones likewise, each step rounded once; then the
// two sums, then this and C.
class EmulatedTiles {
 public:
  static constexpr bool kHolds = false;

  template <int kTo>
  void zero() {
    std::memset(tiles_[kTo], 0, sizeof tiles_[kTo]);
  }
  template <int kTo>
  void load(const void* from, int64_t stride) {
    for (int row = 0; row < 16; ++row) {
      std::memcpy(tiles_[kTo][row], static_cast<const char*>(from) + row * stride, 64);
    }
  }
  template <int kFrom>
  void store(void* to, int64_t stride) {
    for (int row = 0; row < 16; ++row) {
      std::memcpy(static_cast<char*>(to) + row * stride, tiles_[kFrom][row], 64);
    }
  }
  template <int kC, int kA, int kB>
  void multiply() {
    using namespace emulated;  // NOLINT: the arithmetic
    for (int row = 0; row < 16; ++row) {
      Sums even = {}, odd = {};
      for (int k = 0; k < 16; ++k) {
        const uint32_t a = tiles_[kA][row][k];
        add_products(low(a), tiles_[kB][k], low, even);
        add_products(high(a), tiles_[kB][k], high, odd);
      }
      for (int n = 0; n < 16; ++n) {
        const float c = flushed(std::bit_cast<float>(tiles_[kC][row][n]));
        const float sum = flushed(c + flushed(even[n] + odd[n]));
        tiles_[kC][row][n] = std::bit_cast<uint32_t>(sum);
      }
    }
  }

 private:
  uint32_t tiles_[8][16][16];
};

// kRows x kColumns tiles of C.
template <int kRows, int kColumns, class Tiles>
void tile_block(Tiles& tiles, int64_t K, const uint16_t* a, int64_t lda, const uint16_t* b,
                int64_t ldb, float* c, int64_t ldc, bool accumulate) {
  constexpr int kSecondRow = kRows - 1, kSecondColumn = kColumns - 1;
  const int64_t c_bytes = 4 * ldc, a_bytes = 2 * lda, b_bytes = 4 * ldb;
  const auto each = [](auto&& f) {
    f(std::integral_constant<int, 0>(), 0, 0);
    if constexpr (kColumns == 2) f(std::integral_constant<int, 1>(), 0, 1);
    if constexpr (kRows == 2) f(std::integral_constant<int, 2>(), 1, 0);
    if constexpr (kRows == 2 && kColumns == 2) f(std::integral_constant<int, 3>(), 1, 1);
  };
  each([&](auto n, int row, int column) {
    if (accumulate) {
      tiles.template load<n.value>(c + row * 16 * ldc + column * 16, c_bytes);
    } else {
      tiles.template zero<n.value>();
    }
  });
  for (int64_t k = 0; k < K; k += 32) {
    tiles.template load<4>(a + k, a_bytes);
    if constexpr (kRows == 2) tiles.template load<5>(a + kSecondRow * 16 * lda + k, a_bytes);
    tiles.template load<6>(b + k * ldb, b_bytes);
    if constexpr (kColumns == 2) {
      tiles.template load<7>(b + k * ldb + kSecondColumn * 32, b_bytes);
    }
    tiles.template multiply<0, 4, 6>();
    if constexpr (kColumns == 2) tiles.template multiply<1, 4, 7>();
    if constexpr (kRows == 2) tiles.template multiply<2, 5, 6>();
    if constexpr (kRows == 2 && kColumns == 2) tiles.template multiply<3, 5, 7>();
  }
  each([&](auto n, int row, int column) {
    tiles.template store<n.value>(c + row * 16 * ldc + column * 16, c_bytes);
  });
}

// As of MatrixUnit.
template <class Tiles>
void put_tile(TileProduct& x) {
  if (x.held == nullptr) return;
  Tiles tiles;
  if (x.held_in == 0) {
    tiles.template store<0>(x.held, 4 * x.ld_held);
  } else {
    tiles.template store<1>(x.held, 4 * x.ld_held);
  }
  x.held = nullptr;
}

// The next tile, in register kC; that in the other one is stored behind the products, which need not wait
// for it. Up to four tiles of A stay where they are for the next call.
template <class Tiles, int kC>
void multiply_into(TileProduct& x) {
  Tiles tiles;
  if (x.held == x.c) put_tile<Tiles>(x);
  if (x.accumulate) {
    tiles.template load<kC>(x.c, 4 * x.ldc);
  } else {
    tiles.template zero<kC>();
  }
  const uint16_t *a = x.a, *b = x.b;
  const int64_t steps = x.K / kUnitDepth;
  const auto step = [&](auto n, bool fresh) {
    constexpr int kA = 2 + decltype(n)::value, kB = 6 + decltype(n)::value % 2;
    if (fresh) tiles.template load<kA>(a, 2 * x.lda);
    tiles.template load<kB>(b, 4 * x.ldb);
    tiles.template multiply<kC, kA, kB>();
    a += kUnitDepth;
    b += kUnitDepth * x.ldb;
  };
  const bool fresh = x.fresh || !Tiles::kHolds;
  step(std::integral_constant<int, 0>(), fresh);
  if (steps > 1) step(std::integral_constant<int, 1>(), fresh);
  if (steps > 2) step(std::integral_constant<int, 2>(), fresh);
  if (steps > 3) step(std::integral_constant<int, 3>(), fresh);
  for (int64_t n = 4; n < steps; ++n) step(std::integral_constant<int, 3>(), true);
  x.fresh = steps > 4;
  if (Tiles::kHolds) {
    if (x.held != nullptr) tiles.template store<1 - kC>(x.held, 4 * x.ld_held);
    x.held = x.c;
    x.ld_held = x.ldc;
    x.held_in = kC;
  } else {
    tiles.template store<kC>(x.c, 4 * x.ldc);
  }
  x.b += 2 * kUnitRows;
  x.c += kUnitRows;
}

template <class Tiles>
void multiply_tile(TileProduct& x) {
  if (x.held_in == 0) {
    multiply_into<Tiles, 1>(x);
  } else {
    multiply_into<Tiles, 0>(x);
  }
}

// As of MatrixUnit.
template <class Tiles>
void tile_gemm(int64_t M, int64_t N, int64_t K, const uint16_t* a, int64_t lda, const uint16_t* b,
               int64_t ldb, float* c, int64_t ldc, bool accumulate) {
  Tiles tiles;
  const auto rows = [&](auto count, int64_t m) {
    constexpr int kRows = decltype(count)::value;
    const uint16_t* from = a + m * lda;
    float* to = c + m * ldc;
    int64_t n = 0;
    for (; n + 32 <= N; n += 32) {
      tile_block<kRows, 2>(tiles, K, from, lda, b + 2 * n, ldb, to + n, ldc, accumulate);
    }
    if (n < N) tile_block<kRows, 1>(tiles, K, from, lda, b + 2 * n, ldb, to + n, ldc, accumulate);
  };
  int64_t m = 0;
  for (; m + 32 <= M; m += 32) rows(std::integral_constant<int, 2>(), m);
  if (m < M) rows(std::integral_constant<int, 1>(), m);
}

}  // namespace relpos
