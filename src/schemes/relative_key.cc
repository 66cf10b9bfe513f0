// Huang et al. 2020 (BERT's relative_key and relative_key_query): rows of distances meet the queries, and
// the same rows meet the keys.
//
//   score[i,j] = scale (<q_i, k_j> + <q_i, r[m]> + <k_j, r[m]>),   m = pos_q - pos_k + positions - 1
//
// Distances beyond the table take its ends, where BERT's own code fails.
#include "relpos/scheme.h"

namespace relpos {

namespace {

struct RelativeKey {
  int64_t positions = 0, head_dim = 0;
  std::string kind = "relative_key_query";

  void options(OptionList& o) {
    o.required("positions", positions, "distances below it, on either side, have a row");
    o.required("head_dim", head_dim, "size of a query and key head");
    o.keyword_only();
    o.choice("kind", kind, {"relative_key_query", "relative_key"},
             "the rows meet queries and keys, or queries alone");
  }

  void terms(Builder& b) const {
    const ClassMap map = ClassMap::clamp(1 - positions, positions - 1, /*reversed=*/true);
    const Source rows = b.parameter("distance_embedding.weight", {2 * positions - 1, head_dim},
                                    Init::normal(0.02), "rows of distances, farthest future first");
    b.rows(map, rows);
    if (kind == "relative_key_query") b.columns(map, rows);
  }
};

}  // namespace

RELPOS_SCHEME(relative_key, RelativeKey, "RelativeKey",
              "rows of distances meet the queries, and the same rows the keys",
              "Huang et al. 2020, Improve Transformer Models with Better Relative Position "
              "Embeddings, methods 1 and 4")

}  // namespace relpos
