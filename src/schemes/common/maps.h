// Maps from distances to rows that several schemes take.
#pragma once

#include <cstdint>
#include <functional>

#include "relpos/scheme.h"

namespace relpos::common {

// The runs of a map that is written out, at most.
inline constexpr int64_t kMostRuns = int64_t{1} << 26;

// classes(delta) of lo <= delta <= hi; beyond, those of the ends or none.
enum class Beyond { kEnds, kNone };
ClassMap by_distance(const Builder& b, int64_t lo, int64_t hi, Beyond beyond,
                     const std::function<int64_t(int64_t delta)>& classes);

// min(|delta|, farthest).
ClassMap magnitudes(const Builder& b, int64_t farthest);

// clamp(delta, lo, hi) + middle, or middle - clamp(delta, lo, hi) where mirrored: rows of a larger
// table.
ClassMap shifted_clamp(const Builder& b, int64_t lo, int64_t hi, int64_t middle, bool mirrored);

}  // namespace relpos::common
