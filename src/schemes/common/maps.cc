#include "schemes/common/maps.h"

#include <cstdlib>
#include <utility>
#include <vector>

namespace relpos::common {
namespace {

// classes(delta) of lo <= delta <= hi, those of the ends beyond.
template <typename F>
ClassMap by_distance(const Builder& b, int64_t lo, int64_t hi, F classes) {
  b.require(hi - lo < kMostRuns, "expected fewer than ", kMostRuns,
            " distances with a row of their own, got ", hi - lo + 1);
  std::vector<int64_t> starts, rows{classes(lo)};
  for (int64_t delta = lo + 1; delta <= hi; ++delta) {
    starts.push_back(delta);
    rows.push_back(classes(delta));
  }
  return ClassMap::thresholds(std::move(starts), std::move(rows));
}

}  // namespace

ClassMap magnitudes(const Builder& b, int64_t farthest) {
  return by_distance(b, -farthest, farthest, [](int64_t delta) { return std::abs(delta); });
}

ClassMap shifted_clamp(const Builder& b, int64_t lo, int64_t hi, int64_t middle, bool mirrored) {
  return by_distance(b, lo, hi,
                     [=](int64_t delta) { return mirrored ? middle - delta : middle + delta; });
}

}  // namespace relpos::common
