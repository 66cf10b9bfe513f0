// The input of terms by classes of pairs.
#pragma once

#include <optional>
#include <vector>

#include "schemes/common/given.h"

namespace relpos::common {

struct PairInput {
  bool by_row = false;
  std::optional<int64_t> hidden;

  void options(OptionList& o) {
    o.flag("by_row", by_row, "each batch row has classes of its own: [batch, queries, keys]");
    o.size("hidden", hidden, "pairs of this class are not seen; none: all are", 0);
  }

  Source input(Builder& b) const {
    b.require(!hidden || *hidden < kMostPairClasses, "hidden: expected a class below ",
              kMostPairClasses, ", got ", hidden.value_or(0));
    std::vector<int64_t> shape{kQueries, kKeys};
    if (by_row) shape.insert(shape.begin(), kBatch);
    return b.integers("classes", shape, kExampleRows - 1, "the class of each pair", DType::kUInt8);
  }
  int hidden_class() const { return static_cast<int>(hidden.value_or(-1)); }
};

}  // namespace relpos::common
