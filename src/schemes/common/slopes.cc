#include "schemes/common/slopes.h"

#include <bit>
#include <cmath>

namespace relpos::common {

std::vector<double> geometric_slopes(int64_t heads) {
  std::vector<double> slopes;
  for (int64_t h = 1; h <= heads; ++h) {
    slopes.push_back(std::exp2(-8.0 * static_cast<double>(h) / static_cast<double>(heads)));
  }
  return slopes;
}

std::vector<double> paper_slopes(int64_t heads) {
  const auto below = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(heads)));
  std::vector<double> slopes = geometric_slopes(below);
  const std::vector<double> finer = geometric_slopes(2 * below);
  for (int64_t i = 0; i < heads - below; ++i) {
    slopes.push_back(finer[static_cast<size_t>(2 * i)]);
  }
  return slopes;
}

}  // namespace relpos::common
