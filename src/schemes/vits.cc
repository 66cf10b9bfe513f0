// Kim et al. 2021 (VITS): learned rows of near distances join the keys and the values, none farther.
//
//   score[i,j] = scale <q_i, k_j + emb_rel_k[m]>     out[i] = sum_j P[i,j] (v_j + emb_rel_v[m])
//   m = pos_k - pos_q + window_size, no row beyond window_size
#include <cmath>

#include "relpos/scheme.h"

namespace relpos {

namespace {

struct VITS {
  int64_t window_size = 0, head_dim = 0;
  std::optional<int64_t> value_dim;

  void options(OptionList& o) {
    o.required("window_size", window_size, "distances beyond it have no row", 0);
    o.required("head_dim", head_dim, "size of a query and key head");
    o.keyword_only();
    o.size("value_dim", value_dim, "size of a value head; None: head_dim");
  }

  void terms(Builder& b) const {
    const ClassMap map = ClassMap::zero_outside(-window_size, window_size);
    const int64_t columns = value_dim.value_or(head_dim);
    const auto table = [&](const char* name, int64_t size, const char* doc) {
      const double deviation = 1.0 / std::sqrt(static_cast<double>(head_dim));
      return b.parameter(name, {1, 2 * window_size + 1, size}, Init::normal(deviation), doc)[0];
    };
    b.value_dim(columns, "value_dim");
    b.rows(map, table("emb_rel_k", head_dim, "rows that join the keys, farthest past first"));
    b.values(map, table("emb_rel_v", columns, "rows that join the values"));
  }
};

}  // namespace

RELPOS_SCHEME(vits, VITS, "VITS", "learned rows of near distances join the keys and the values",
              "Kim, Kong, Son 2021, VITS; Hugging Face VitsAttention")

}  // namespace relpos
