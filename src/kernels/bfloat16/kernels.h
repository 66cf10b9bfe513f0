// Kernels::forward and Kernels::backward where a unit multiplies.
#pragma once

#include "kernels/block.h"

namespace relpos::bfloat16 {

inline constexpr int kPart = 48;  // rows at a time: whole groups, and whole rows of a unit
static_assert(kPart % kGroup == 0 && kPart % kUnitRows == 0 && kRows % kPart == 0);

void forward(Block& block, ForwardState& state, const KeyTile* tiles, int64_t first, int64_t count);

}  // namespace relpos::bfloat16
