#include "notebooks/common.h"

namespace relpos::notebooks {

std::vector<Step> bias_rpe(const Part& part, const Grid& grid) {
  return {arange("pos_q", grid.q_offset, grid.queries), arange("pos_k", 0, grid.keys),
          pairwise("rel_pos", grid, [](int64_t q, int64_t k) { return q - k; }),
          index_step("rel_pos.clamp(-r_max + 1, r_max - 1) + r_max - 1", part, grid),
          dense_step("biases[:, rel_pos]", part, grid)};
}

}  // namespace relpos::notebooks
