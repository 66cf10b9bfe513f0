#include <algorithm>
#include <cmath>

#include "notebooks/common.h"
#include "schemes/common/buckets.h"

namespace relpos::notebooks {

std::vector<Step> t5(const Part& part, const Grid& grid) {
  const bool two_sided = part.options().flag("bidirectional");
  const common::Buckets buckets("t5", part.options().integer("buckets"),
                                part.options().integer("max_distance"), two_sided);
  const auto integer = Step::Kind::kInteger;
  const auto whole = [](double x) { return static_cast<int64_t>(x); };
  std::vector<Step> list = {
      arange("q_pos", grid.q_offset, grid.queries),
      arange("k_pos", 0, grid.keys),
      pairwise("rel_pos", grid, [](int64_t q, int64_t k) { return k - q; }),
      pairwise("n", grid, [](int64_t q, int64_t k) { return q - k; }),
  };
  const Step signed_n = list.back();
  if (two_sided) {
    list.push_back(each("(n < 0) * num_buckets", integer, signed_n,
                        [&](double n) { return n < 0 ? buckets.per_side() : 0; }));
    list.push_back(each("abs(n)", integer, signed_n, [](double n) { return std::abs(n); }));
  } else {
    list.push_back(each("max(n, 0)", integer, signed_n, [](double n) { return std::max(n, 0.0); }));
  }
  const Step n = list.back();
  list.push_back(each("is_small", Step::Kind::kBoolean, n,
                      [&](double x) { return whole(x) < buckets.max_exact(); }));
  list.push_back(each("val_if_large", Step::Kind::kReal, n,
                      [&](double x) { return buckets.value_if_large(whole(x)); }));
  list.push_back(each("val_if_large.long()", integer, n,
                      [&](double x) { return buckets.whole_if_large(whole(x)); }));
  list.push_back(each("min(val_if_large, num_buckets - 1)", integer, n, [&](double x) {
    return std::min(buckets.whole_if_large(whole(x)), buckets.per_side() - 1);
  }));
  list.push_back(index_step("position_bucket_indices", part, grid));
  list.push_back(dense_step("relative_position_values", part, grid));
  return list;
}

}  // namespace relpos::notebooks
