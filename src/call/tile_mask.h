// Checks a mask by tiles, and gives the kernels their view of it.
#pragma once

#include "kernels/problem.h"
#include "relpos/attention.h"

namespace relpos {

// Of a call whose sizes are read. Throws unless every number of the mask is one that it may hold.
SeenTiles read_tile_mask(const TileMask& mask, const Problem& problem);

}  // namespace relpos
