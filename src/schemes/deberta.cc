// He et al. 2021 (DeBERTa): the content of queries meets positions, and positions the content of keys.
//
//   score[h,i,j] = scale (<q_i, k_j> + <q_i, pos_key[h, m]> + <k_j, pos_query[h, m]>)
//   m = clamp(bucket(pos_q - pos_k) + span, 0, 2 span - 1)
//
// Models take scale = 1 / sqrt(3 D), for three terms. Both tables are given after their projections.
#include <cmath>

#include "relpos/scheme.h"

namespace relpos {

namespace {

struct DeBERTa {
  int64_t heads = 0, head_dim = 0, buckets = 256, max_distance = 512;
  std::string kinds = "both";

  void options(OptionList& o) {
    o.required("heads", heads, "query heads");
    o.required("head_dim", head_dim, "size of a query and key head");
    o.keyword_only();
    o.size("buckets", buckets, "classes on each side, an even number; 0: no buckets, as in v1", 0);
    o.size("max_distance", max_distance, "distances from it on share a bucket", 2);
    o.choice("terms", kinds, {"both", "c2p", "p2c"},
             "content to position (pos_key), position to content (pos_query), or both");
  }

  // v2's bucket of n >= 0: n itself up to half of the buckets, then by its logarithm.
  int64_t bucket(int64_t n) const {
    const int64_t half = buckets / 2;
    if (n <= half) return n;
    const auto middle = static_cast<double>(half);
    const double share = std::log(static_cast<double>(n) / middle) /
                         std::log(static_cast<double>(max_distance - 1) / middle);
    return half + static_cast<int64_t>(std::ceil(share * (middle - 1.0)));
  }

  static constexpr int64_t kNever = int64_t{1} << 62;  // beyond every distance

  ClassMap map(const Builder& b) const {
    if (buckets == 0) return ClassMap::clamp(1 - max_distance, max_distance, /*reversed=*/true);
    b.require(buckets % 2 == 0 && buckets <= kLargestHeads,
              "buckets: expected 0 or an even number, got ", buckets);
    b.require(max_distance > buckets / 2 + 1,
              "max_distance: expected more than buckets / 2 + 1 = ", buckets / 2 + 1, ", got ",
              max_distance);
    std::vector<int64_t> first;  // of each bucket v: the least n with bucket(n) >= v
    for (int64_t v = 0; v <= buckets; ++v) {
      int64_t below = v == 0 ? -1 : first.back() - 1, reached = max_distance;
      if (bucket(max_distance) < v) below = reached = kNever;
      while (reached - below > 1) {
        const int64_t middle = below + (reached - below) / 2;
        (bucket(middle) >= v ? reached : below) = middle;
      }
      first.push_back(reached);
    }
    std::vector<int64_t> starts, rows{2 * buckets - 1};
    for (int64_t v = buckets - 2; v >= 0; --v) {
      starts.push_back(1 - first[static_cast<size_t>(v + 1)]);
      rows.push_back(buckets + v);
    }
    for (int64_t v = 1; v <= buckets; ++v) {
      starts.push_back(first[static_cast<size_t>(v)]);
      rows.push_back(buckets - v);
    }
    return ClassMap::thresholds(std::move(starts), std::move(rows));
  }

  void terms(Builder& b) const {
    const ClassMap classes = map(b);
    const std::vector<int64_t> shape = {heads, classes.classes(), head_dim};
    if (kinds != "p2c") {
      b.rows(classes, b.parameter("pos_key", shape, Init::normal(0.02),
                                  "rows that meet the queries, farthest future first"));
    }
    if (kinds != "c2p") {
      b.columns(classes, b.parameter("pos_query", shape, Init::normal(0.02),
                                     "rows that meet the keys, farthest future first"));
    }
  }
};

}  // namespace

RELPOS_SCHEME(deberta, DeBERTa, "DeBERTa",
              "queries meet rows of distances, and so do keys, in logarithmic buckets",
              "He et al. 2021, DeBERTa, section 3.1; buckets as in DeBERTa-v2")

}  // namespace relpos
