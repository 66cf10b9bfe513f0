// Sizes of the schemes that project sinusoids of a distance to a row for each head.
#pragma once

#include <cstdint>
#include <optional>

#include "relpos/scheme.h"

namespace relpos::common {

struct ProjectionSizes {
  static constexpr int64_t kWidest = int64_t{1} << 17;  // 34 MB of sines and cosines
  int64_t heads = 0, head_dim = 0;
  std::optional<int64_t> given_width;

  void options(OptionList& o) {
    o.required("heads", heads, "query heads");
    o.required("head_dim", head_dim, "size of a query and key head");
    o.size("width", given_width,
           "sines and cosines of a distance, an even number (d_model); None: heads head_dim", 2);
  }

  // Throws where a row of sinusoids cannot have that many.
  int64_t width(const Builder& b) const {
    const int64_t found = given_width.value_or(rows());
    b.require(found % 2 == 0, "width: expected an even number, got ", found);
    b.require(found <= kWidest, "width: expected up to ", kWidest, ", got ", found);
    return found;
  }
  int64_t rows() const { return heads * head_dim; }
};

}  // namespace relpos::common
