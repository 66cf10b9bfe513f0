// Shaw, Uszkoreit, Vaswani 2018: rows for clipped distances join the keys and the values.
//
//   score[i,j] = scale <q_i, k_j + key_table[m]>     out[i] = sum_j P[i,j] (v_j + value_table[m])
//   m = clamp(pos_k - pos_q, -left, right) + left,   left = right = max_distance unless given
//
// With `rows` the table has more rows on both sides, which no distance reads: m + (rows - 1) / 2 - left.
#include <algorithm>

#include "relpos/scheme.h"
#include "schemes/common/maps.h"

namespace relpos {

namespace {

struct Shaw {
  int64_t max_distance = 0, head_dim = 0;
  std::optional<int64_t> heads, value_dim, past, future, all_rows;
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
    o.size("left", past, "past distances beyond it share its row; None: max_distance", 0);
    o.size("right", future, "future distances beyond it share its row; None: max_distance", 0);
    o.size("rows", all_rows, "rows of a table with distance 0 in the middle; None: those in use");
  }

  Source table(Builder& b, const char* name, int64_t columns, const char* doc,
               const std::vector<Origin>& origins) const {
    const int64_t rows = all_rows.value_or(left() + right() + 1);
    return b.parameter(name, table_shape(heads, rows, columns),
                       init == "xavier_uniform" ? Init::glorot_uniform(rows, columns)
                                                : Init::glorot_normal(rows, columns),
                       doc, origins);
  }

  int64_t left() const { return past.value_or(max_distance); }
  int64_t right() const { return future.value_or(max_distance); }

  ClassMap map(const Builder& b, bool mirrored) const {
    if (!all_rows) return ClassMap::clamp(-left(), right(), mirrored);
    const int64_t middle = (*all_rows - 1) / 2;
    b.require(*all_rows % 2 == 1 && std::max(left(), right()) <= middle,
              "rows: expected an odd number of at least ", 2 * std::max(left(), right()) + 1,
              ", got ", *all_rows);
    return common::shifted_clamp(b, -left(), right(), middle, mirrored);
  }

  void terms(Builder& b) const {
    const bool mirrored = distance == "query-key";
    const ClassMap map = this->map(b, mirrored);
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
