// Huang et al. 2018 (Music Transformer): a row of its own for every distance, none beyond the table.
//
//   score[i,j] = scale <q_i, k_j + Er[max_length - 1 + pos_k - pos_q]>
//
// The last row belongs to distance 0. Where the table has no row (the future, or farther back than
// max_length - 1) the second term is 0.
#include <cmath>

#include "relpos/scheme.h"

namespace relpos {

namespace {

struct MusicTransformer {
  int64_t max_length = 0, head_dim = 0;
  std::optional<int64_t> heads;
  bool bidirectional = false;

  void options(OptionList& o) {
    o.required("max_length", max_length, "distances 0 to max_length - 1 have rows");
    o.required("head_dim", head_dim, "size of a query and key head");
    o.keyword_only();
    o.size("heads", heads, "tables of their own for so many heads; None: one table for all heads");
    o.flag("bidirectional", bidirectional, "rows for the future, too: 2 max_length - 1 rows");
  }

  void terms(Builder& b) const {
    const int64_t farthest = max_length - 1;
    const ClassMap map = ClassMap::zero_outside(-farthest, bidirectional ? farthest : 0);
    const double deviation = 1.0 / std::sqrt(static_cast<double>(head_dim));
    b.rows(map,
           b.parameter("Er", table_shape(heads, map.classes(), head_dim), Init::normal(deviation),
                       "one row for each distance, farthest past first",
                       {{"tensor2tensor", "key_relative_embeddings"}}));
  }
};

}  // namespace

RELPOS_SCHEME(music_transformer, MusicTransformer, "MusicTransformer",
              "a learned row for every distance up to max_length, none beyond",
              "Huang et al. 2018, Music Transformer, 3.4; tensor2tensor dot_product_relative_v2")

}  // namespace relpos
