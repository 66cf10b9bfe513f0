// Slopes of linear biases (Press et al. 2022), one for each head.
#pragma once

#include <cstdint>
#include <vector>

namespace relpos::common {

// 2^(-8 h / heads), h = 1 .. heads.
std::vector<double> geometric_slopes(int64_t heads);

// The paper's code: geometric for a power of two; else the slopes of the power of two c below, then
// every other slope of 2 c from the first on. Never sorted.
std::vector<double> paper_slopes(int64_t heads);

}  // namespace relpos::common
