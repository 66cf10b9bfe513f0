// Kernels::forward and Kernels::backward where a unit multiplies.
#pragma once

#include <algorithm>

#include "base/buffer.h"
#include "kernels/block/kernels.h"

namespace relpos::bfloat16 {

inline constexpr int kPart = 48;  // rows at a time: whole groups, and whole rows of a unit
static_assert(kPart % kGroup == 0 && kPart % kUnitRows == 0 && kRows % kPart == 0);

// The keys of a tile as columns of a product, and as what one sums over: the last tile of a head may
// have few. Packed tiles hold no more.
struct TileKeys {
  int64_t columns, depth;

  TileKeys(const Block& block, int64_t t) noexcept {
    const int64_t keys = std::min(kTile, block.problem->keys - t * kTile);
    columns = round_up(keys, kUnitRows);
    depth = round_up(keys, kUnitDepth);
  }
};

void forward(Block& block, ForwardState& state, const KeyTile* tiles, int64_t first, int64_t count);
void backward(Block& block, BackwardState& state, const KeyTile& tile, int64_t t,
              const KeyTile* next);

}  // namespace relpos::bfloat16
