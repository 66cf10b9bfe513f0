// How a recipe keeps its scheme.
#pragma once

#include <memory>

#include "relpos/position.h"

namespace relpos {

// The scheme itself where find_scheme finds it, since that one stays; a copy of any other, which the
// caller may destroy before the positions that were made of it.
std::shared_ptr<const Scheme> kept(const Scheme& scheme);

}  // namespace relpos
