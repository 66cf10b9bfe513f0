// A vector of zeros whose making can be cancelled.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/parallel.h"

namespace relpos {

// Written a piece at a time: fresh memory costs a third of a second for each gigabyte.
inline std::vector<double> zeros(int64_t count) {
  constexpr int64_t kPiece = int64_t{1} << 20;
  std::vector<double> values;
  values.reserve(static_cast<size_t>(count));
  for (int64_t done = 0; done < count; done += kPiece) {
    check_cancelled();
    values.resize(static_cast<size_t>(std::min(count, done + kPiece)), 0.0);
  }
  return values;
}

}  // namespace relpos
