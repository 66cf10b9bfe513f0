#include <algorithm>

#include "notebooks/common.h"

namespace relpos::notebooks {
namespace {
constexpr int64_t kSmall = 4096;  // numbers of gathered rows that are still listed
}

std::vector<Step> shaw(const Part& part, const Grid& grid) {
  const auto m = static_cast<double>(part.options().integer("max_distance"));
  const bool reversed = part.options().text("distance") == "query-key";
  const bool per_head = part.options().has("heads");
  const int64_t numbers =
      (per_head ? part.options().integer("heads") : 1) * part.options().integer("head_dim");
  std::vector<Step> list = {
      arange("range_vec_q", grid.q_offset, grid.queries),
      arange("range_vec_k", 0, grid.keys),
      pairwise("distance_mat", grid,
               [&](int64_t q, int64_t k) { return reversed ? q - k : k - q; }),
  };
  list.push_back(each("distance_mat_clipped", Step::Kind::kInteger, list.back(),
                      [&](double x) { return std::clamp(x, -m, m); }));
  list.push_back(index_step("final_mat", part, grid));
  if (grid.queries * grid.keys <= kSmall / numbers) {
    list.push_back(dense_step(
        per_head ? "embeddings_table[:, final_mat]" : "embeddings_table[final_mat]", part, grid));
  }
  return list;
}

}  // namespace relpos::notebooks
