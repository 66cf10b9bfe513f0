#include "schemes/common/maps.h"

#include <cstdlib>
#include <utility>
#include <vector>

namespace relpos::common {

ClassMap by_distance(const Builder& b, int64_t lo, int64_t hi, Beyond beyond,
                     const std::function<int64_t(int64_t delta)>& classes) {
  b.require(hi - lo < kMostRuns, "expected fewer than ", kMostRuns,
            " distances with a row of their own, got ", hi - lo + 1);
  const bool none = beyond == Beyond::kNone;
  std::vector<int64_t> starts, rows{none ? ClassMap::kNone : classes(lo)};
  for (int64_t delta = none ? lo : lo + 1; delta <= hi; ++delta) {
    starts.push_back(delta);
    rows.push_back(classes(delta));
  }
  if (none) {
    starts.push_back(hi + 1);
    rows.push_back(ClassMap::kNone);
  }
  return ClassMap::thresholds(std::move(starts), std::move(rows));
}

ClassMap magnitudes(const Builder& b, int64_t farthest) {
  return by_distance(b, -farthest, farthest, Beyond::kEnds,
                     [](int64_t delta) { return std::abs(delta); });
}

ClassMap shifted_clamp(const Builder& b, int64_t lo, int64_t hi, int64_t middle, bool mirrored) {
  return by_distance(b, lo, hi, Beyond::kEnds,
                     [=](int64_t delta) { return mirrored ? middle - delta : middle + delta; });
}

}  // namespace relpos::common
