// Wang et al. 2020 (Axial-DeepLab): learned rows of distances along an axis of an image meet the queries
// and the keys, and join the values.
//
//   score[i,j] = scale (<q_i, k_j> + <q_i, query_table[m]> + <k_j, key_table[m]>)
//   out[i] = sum_j P[i,j] (v_j + value_table[m]),   m = pos_k - pos_q + span - 1, none beyond
//
// One call along an axis; the gates of later versions multiply the tables and stay with the caller.
#include <cmath>

#include "relpos/scheme.h"

namespace relpos {

namespace {

struct AxialDeepLab {
  int64_t span = 0, head_dim = 0;
  std::optional<int64_t> value_dim;

  void options(OptionList& o) {
    o.required("span", span, "pixels along the axis");
    o.required("head_dim", head_dim, "size of a query and key head");
    o.keyword_only();
    o.size("value_dim", value_dim, "size of a value head; None: head_dim");
  }

  void terms(Builder& b) const {
    const ClassMap map = ClassMap::zero_outside(1 - span, span - 1);
    const int64_t columns = value_dim.value_or(head_dim);
    const auto table = [&](const char* name, int64_t size, const char* doc) {
      const double deviation = 1.0 / std::sqrt(static_cast<double>(head_dim));
      return b.parameter(name, {2 * span - 1, size}, Init::normal(deviation), doc);
    };
    b.value_dim(columns, "value_dim");
    b.rows(map, table("query_table", head_dim, "rows that meet the queries, farthest past first"));
    b.columns(map, table("key_table", head_dim, "rows that meet the keys"));
    b.values(map, table("value_table", columns, "rows that join the values"));
  }
};

}  // namespace

RELPOS_SCHEME(axial_deeplab, AxialDeepLab, "AxialDeepLab",
              "learned rows of distances meet the queries and the keys and join the values",
              "Wang et al. 2020, Axial-DeepLab, section 3.2, equation 4")

}  // namespace relpos
