// Shaw, Uszkoreit, Vaswani 2018: rows for clipped distances join the keys and the values.
//
//   score[i,j] = scale <q_i, k_j + key_table[m]>     out[i] = sum_j P[i,j] (v_j + value_table[m])
//   m = clamp(pos_k - pos_q, -max_distance, max_distance) + max_distance
#include "relpos/scheme.h"

namespace relpos {

namespace {

struct Shaw {
  int64_t max_distance = 0, head_dim = 0;
  std::optional<int64_t> heads, value_dim;
  bool values = true;
  std::string distance = "key-query", init = "xavier_uniform";

  void options(OptionList& o) {
    o.required("max_distance", max_distance, "distances beyond it share its row", 0);
    o.required("head_dim", head_dim, "size of a query and key head");
    o.keyword_only();
    o.size("heads", heads, "tables of their own for so many heads; None: one table for all heads");
    o.flag("values", values, "rows for the values, too");
    o.size("value_dim", value_dim, "size of a value head; None: head_dim");
    o.choice("distance", distance, {"key-query", "query-key"},
             "row 0 is the farthest past (key-query) or the farthest future (query-key)");
    o.choice("init", init, {"xavier_uniform", "xavier_normal"},
             "Glorot initialisation of each table, of each head's where heads is given");
  }

  Source table(Builder& b, const char* name, int64_t columns, const char* doc,
               const std::vector<Origin>& origins) const {
    const int64_t rows = 2 * max_distance + 1;
    return b.parameter(name, table_shape(heads, rows, columns),
                       init == "xavier_uniform" ? Init::glorot_uniform(rows, columns)
                                                : Init::glorot_normal(rows, columns),
                       doc, origins);
  }

  void terms(Builder& b) const {
    const bool mirrored = distance == "query-key";
    const ClassMap map = ClassMap::clamp(-max_distance, max_distance, mirrored);
    std::vector<Origin> of_keys, of_values;
    if (mirrored) {
      of_keys = {{"bert", "distance_embedding.weight"},
                 {"notebooks", "embeddings_table"},
                 {"notebooks", "embedding.weight"}};
    } else {
      of_keys = {{"tensor2tensor", "relative_positions_keys/embeddings"}};
      of_values = {{"tensor2tensor", "relative_positions_values/embeddings"}};
    }
    b.rows(map, table(b, "key_table", head_dim, "rows that join the keys", of_keys));
    if (!values) return;
    b.value_dim(value_dim.value_or(head_dim), "value_dim");
    b.values(map, table(b, "value_table", value_dim.value_or(head_dim), "rows that join the values",
                        of_values));
  }
};

}  // namespace

RELPOS_SCHEME(shaw, Shaw, "Shaw", "learned rows of clipped distances join the keys and the values",
              "Shaw, Uszkoreit, Vaswani 2018, Self-Attention with Relative Position "
              "Representations, 3.2")

}  // namespace relpos
