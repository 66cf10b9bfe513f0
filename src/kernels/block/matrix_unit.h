// Products of bfloat16 numbers, summed in float32: the units of a CPU that compute them, and plain
// emulations of these, which tests run on any machine.
#pragma once

#include <cstdint>
#include <vector>

namespace relpos {

inline constexpr int64_t kUnitRows = 16;   // rows and columns of a product are multiples of this
inline constexpr int64_t kUnitDepth = 32;  // and what is summed over, of this

// A product of kUnitRows rows, to be computed a tile of kUnitRows columns at a time.
struct TileProduct {
  int64_t K = 0;
  const uint16_t* a = nullptr;
  int64_t lda = 0;
  const uint16_t* b = nullptr;  // of the next tile: pairs
  int64_t ldb = 0;
  float* c = nullptr;  // of the next tile
  int64_t ldc = 0;
  bool accumulate = false;
  bool fresh = true;  // `a` is not that of the tile before
  // The tile that the unit still holds, if any, and in which of its registers, the last one used.
  float* held = nullptr;
  int64_t ld_held = 0;
  int held_in = 0;
};

// *Pairs* of a matrix B[K, N]: element n of row k / 2 is B[k, n] and B[k + 1, n].
struct MatrixUnit {
  const char* name;
  // Around products, in each thread. Units that have no state do nothing.
  void (*begin)();
  void (*end)();
  // C[M, N] = (accumulate ? C : 0) + A B; rows of A are lda numbers apart, of B ldb pairs, and
  // of C ldc floats. Denormal inputs and sums count as 0.
  void (*gemm)(int64_t M, int64_t N, int64_t K, const uint16_t* a, int64_t lda, const uint16_t* b,
               int64_t ldb, float* c, int64_t ldc, bool accumulate);
  // gemm() of the next tile of a product, which moves on to the tile beside it. The unit holds the tile
  // until the next call, or until put(): a store that waits for its sums holds up what follows. Null:
  // nothing is gained by other work beside the products of this unit.
  void (*multiply)(TileProduct& product) = nullptr;
  void (*put)(TileProduct& product) = nullptr;
  // Its CPU rounds vectors to bfloat16 as narrow() does (vcvtne2ps2bf16).
  bool rounds_vectors = false;
  // Weights are found with vscalefps, where the SIMD target has it: a CPU with this unit scales vectors as
  // fast as it multiplies them.
  bool scales_vectors = false;
  // Rows of n floats, n a multiple of kUnitDepth, rounded to nearest even; denormals become 0.
  void (*narrow)(int64_t rows, int64_t n, const float* from, int64_t stride, uint16_t* to,
                 int64_t to_stride);
  // The same for an even number of rows, n a multiple of kUnitRows, into pairs n apart.
  void (*narrow_pairs)(int64_t rows, int64_t n, const float* from, int64_t stride, uint16_t* to);
  // Rows of n numbers of bfloat16, n a multiple of kUnitRows, into pairs n apart; after an odd number
  // of rows comes one of zeros.
  void (*pair_rows)(int64_t rows, int64_t n, const uint16_t* from, int64_t stride, uint16_t* to);
  // Whether none of the n numbers is NaN or Inf.
  bool (*finite)(int64_t n, const uint16_t* from);
};

// The units of this machine, best first.
const std::vector<MatrixUnit>& usable_units();
// Emulations of the units of any machine.
const std::vector<MatrixUnit>& emulated_units();

}  // namespace relpos
