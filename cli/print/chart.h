// Two curves over the distance, drawn with letters.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace relpos::cli {

// The curves `a` and `b` of the distances first, first + 1, ...: A, B, or * where both fall into one
// place. At most `width` columns; where there are more distances than columns, some are left out.
// Numbers that are not finite are not drawn. Ends in a newline.
std::string chart_text(int64_t first, const std::vector<double>& a, const std::vector<double>& b,
                       int width);

}  // namespace relpos::cli
