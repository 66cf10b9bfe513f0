// A row table that is a projection of features of the distance: sinusoids, mostly.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "relpos/terms.h"

namespace relpos {

// table[h, m, d] = <weight[h D + d, :], features(first + m)>, in float32 or in double.
struct Projection {
  int64_t heads, head_dim, width, first, span;
  bool in_double;
  int threads;
  std::function<void(int64_t first, int64_t count, double* features)> features;  // [count, width]

  // A table of that shape, of no memory.
  TermData blank() const;
  // [span, width].
  std::vector<double> features_of_all() const;
  // [heads, span, head_dim], owned; `weight` [heads head_dim, width].
  TermData table(const std::vector<double>& weight) const;
  // The gradient [heads head_dim, width] that follows from `table_gradient` [heads, span, head_dim].
  std::vector<double> weight_gradient(const std::vector<double>& table_gradient) const;
};

}  // namespace relpos
