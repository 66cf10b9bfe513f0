#include "binding/by_distance.h"

#include "relpos/error.h"

namespace relpos {

int64_t distance_count(const CallSizes& sizes, int64_t numbers, const std::string& scheme) {
  constexpr int64_t kMost = int64_t{1} << 27;
  if (sizes.first_distance > sizes.last_distance) return 1;
  const int64_t reach = sizes.last_distance - sizes.first_distance;
  check_value(reach < kMost / std::max<int64_t>(numbers, 1), scheme,
              ": needs a number for each distance of a call, and those of this one reach from ",
              sizes.first_distance, " to ", sizes.last_distance,
              "; give positions that lie nearer to each other");
  return reach + 1;
}

}  // namespace relpos
