#include "kernels/units/emulated.h"

#include <algorithm>
#include <cstring>

#include "kernels/block/matrix_unit.h"
#include "kernels/units/tiles.h"

namespace relpos {
namespace {

// vdpbf16ps: of each pair the second numbers' product is added first, each step rounded once.
struct Dots {
  using Sum = emulated::Sums;
  struct Pairs {
    uint32_t lane[16];
  };

  static Sum zero() { return {}; }
  static Sum load(const float* from) {
    Sum sum;
    std::memcpy(sum.data(), from, sizeof sum);
    return sum;
  }
  static void store(const Sum& sum, float* to) { std::memcpy(to, sum.data(), sizeof sum); }
  static Pairs pairs(const uint16_t* from) {
    Pairs all;
    std::memcpy(all.lane, from, sizeof all.lane);
    return all;
  }
  static Pairs pair(const uint16_t* from) {
    Pairs one;
    std::memcpy(one.lane, from, sizeof(uint32_t));
    return one;
  }
  static Sum add(Sum sum, const Pairs& a, const Pairs& b) {
    using namespace emulated;  // NOLINT: the arithmetic
    for (float& x : sum) x = flushed(x);
    add_products(high(a.lane[0]), b.lane, high, sum);
    add_products(low(a.lane[0]), b.lane, low, sum);
    return sum;
  }
};

#include "kernels/units/dots-inl.h"

void narrow(int64_t rows, int64_t n, const float* from, int64_t stride, uint16_t* to,
            int64_t to_stride) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t x = 0; x < n; ++x) {
      to[row * to_stride + x] = emulated::narrowed(from[row * stride + x]);
    }
  }
}

void narrow_pairs(int64_t rows, int64_t n, const float* from, int64_t stride, uint16_t* to) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t x = 0; x < n; ++x) {
      to[row / 2 * 2 * n + 2 * x + row % 2] = emulated::narrowed(from[row * stride + x]);
    }
  }
}

void pair_rows(int64_t rows, int64_t n, const uint16_t* from, int64_t stride, uint16_t* to) {
  for (int64_t row = 0; row < rows; row += 2, from += 2 * stride, to += 2 * n) {
    for (int64_t x = 0; x < n; ++x) {
      to[2 * x] = from[x];
      to[2 * x + 1] = row + 1 < rows ? from[stride + x] : uint16_t{0};
    }
  }
}

bool finite(int64_t n, const uint16_t* from) {
  constexpr uint16_t kExponent = 0x7F80;
  return std::none_of(from, from + n, [](uint16_t x) { return (x & kExponent) == kExponent; });
}

void nothing() {}

}  // namespace

const std::vector<MatrixUnit>& emulated_units() {
  const MatrixUnit amx = {.name = "amx_emulated",
                          .begin = nothing,
                          .end = nothing,
                          .gemm = tile_gemm<EmulatedTiles>,
                          .multiply = multiply_tile<EmulatedTiles>,
                          .put = put_tile<EmulatedTiles>,
                          .scales_vectors = true,
                          .narrow = narrow,
                          .narrow_pairs = narrow_pairs,
                          .pair_rows = pair_rows,
                          .finite = finite};
  const MatrixUnit dots = {.name = "avx512_bf16_emulated",
                           .begin = nothing,
                           .end = nothing,
                           .gemm = dot_gemm,
                           .narrow = narrow,
                           .narrow_pairs = narrow_pairs,
                           .pair_rows = pair_rows,
                           .finite = finite};
  static const std::vector<MatrixUnit> units = {amx, dots};
  return units;
}

}  // namespace relpos
