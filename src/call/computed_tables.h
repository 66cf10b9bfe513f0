// Which terms computed_tables() of lower.h is about.
#pragma once

#include "relpos/terms.h"

namespace relpos {

inline bool is_computed_table(const DistanceBias& bias) noexcept {
  return bias.table.view.given() && bias.table.source == nullptr && !bias.coordinates;
}

}  // namespace relpos
