// The sizes of blocks and tiles. A block is up to kRows query rows of one batch row that share a key head;
// a tile is kTile keys (problem.h).
#pragma once

#include <cstdint>

#include "kernels/problem.h"

namespace relpos {

inline constexpr int kRows = 96;  // a multiple of kGroup; a tile's loads serve 16 groups
inline constexpr int kGroup = 6;  // rows of a register tile: 6 x 4 vectors fill 29 of 32 registers
// Tiles that a block takes before the next ones are packed.
inline constexpr int64_t kTilesAtATime = 8;
inline constexpr int64_t kPad = kTile;  // cells beside a window, for what lies outside it

}  // namespace relpos
