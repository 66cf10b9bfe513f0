#include <algorithm>
#include <cstdlib>

#include "notebooks/common.h"

namespace relpos::notebooks {

std::vector<Step> alibi(const Part& part, const Grid& grid) {
  const TensorView& values = part.parameters[0];
  const bool symmetric = part.options().flag("symmetric");
  Step slopes = empty_step("slopes", Step::Kind::kReal, values.dims());
  const int64_t heads = part.options().integer("heads");  // slopes [heads] or [2, heads]
  for (int64_t n = 0; n < values.numel(); ++n) {
    slopes.values.push_back(values.rank == 1 ? values.at({n}) : values.at({n / heads, n % heads}));
  }
  return {std::move(slopes),
          pairwise("distance_matrix", grid,
                   [&](int64_t q, int64_t k) {
                     return symmetric ? -std::abs(q - k) : std::min<int64_t>(k - q, 0);
                   }),
          dense_step("biases", part, grid)};
}

}  // namespace relpos::notebooks
