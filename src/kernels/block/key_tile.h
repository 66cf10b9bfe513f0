// The operands of a tile: its keys and values, packed.
#pragma once

#include <cstdint>

namespace relpos {

// The keys and values of a tile in bfloat16, as pairs (matrix_unit.h); sizes rounded up to
// kUnitDepth, zeros beyond the last of each.
struct PairTile {
  const uint16_t* kt = nullptr;  // [D, kTile] rotated keys
  const uint16_t* k = nullptr;   // [kTile, Dp] the same (backward)
  const uint16_t* v = nullptr;   // [kTile, Dvp] values (forward)
  const uint16_t* vt = nullptr;  // [Dv, kTile] the same (backward)
};

struct KeyTile {
  const float* kt = nullptr;      // [D, kTile] rotated keys, transposed; columns as of transpose()
  const float* k = nullptr;       // [kTile, Dp] rotated keys (backward)
  const float* v = nullptr;       // [kTile, Dvp] (forward), readable up to the last key
  const float* vt = nullptr;      // [Dv, kTile] (backward), columns as those of kt
  PairTile pairs;                 // instead of these four, where a unit multiplies
  const float* memory = nullptr;  // of the whole tile: what the offsets of a plan count from
  // v_finite: or every query sees every value.
  bool k_finite = true, v_finite = true, factors_finite = true;
  float norm = 0.0f;  // the largest of a key, where the plan skips tiles
  bool run = true;    // consecutive positions from first_position
  int64_t first_position = 0;
  const int64_t* positions = nullptr;  // [kTile] where not a run
};

}  // namespace relpos
