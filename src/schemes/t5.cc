// Raffel et al. 2020 (T5): a learned number for each head and bucket of distances.
//
//   score[h,i,j] += bias_scale weight[bucket(pos_k - pos_q), h]
#include "relpos/scheme.h"
#include "schemes/common/buckets.h"

namespace relpos {

namespace {

struct T5 {
  int64_t heads = 0, buckets = 32, max_distance = 128;
  bool bidirectional = true;
  double bias_scale = 1.0;

  void options(OptionList& o) {
    o.required("heads", heads, "query heads");
    o.size("buckets", buckets, "classes of distances; even where bidirectional");
    o.size("max_distance", max_distance, "all distances from it on share the last bucket");
    o.flag("bidirectional", bidirectional,
           "half of the buckets for the future; else the future shares bucket 0");
    o.number("bias_scale", bias_scale, "multiplies the table, and not the scores");
    o.alias("scale");
  }

  void terms(Builder& b) const {
    const ClassMap map = common::Buckets(b.scheme(), buckets, max_distance, bidirectional).map();
    const Source weight = b.parameter(
        "relative_attention_bias.weight", {buckets, heads}, Init::glorot_uniform(buckets, heads),
        "one number for each bucket and head. Glorot as in the authors' t5x: the N(0, 1 / d_model) "
        "of other ports needs the width of a model, and nn.Embedding's N(0, 1) is as large as the "
        "scores it joins",
        {{"t5x", "rel_embedding", true},
         {"mesh", "relative_attention_bias", true},
         {"notebooks", "relative_position_bias.weight"},
         {"notebooks", "relative_attention_embedding.weight"},
         {"notebooks", "rel_pos_embeddings.weight"}});
    b.bias(map, bias_scale * weight.transposed());
  }
};

}  // namespace

RELPOS_SCHEME(
    t5, T5, "T5Bias", "a learned number for each head and bucket of distances",
    "Raffel et al. 2020, Exploring the Limits of Transfer Learning, section 2.1",
    "T5 does not divide its scores by sqrt(D), as attention does by default: give scale=1.0 "
    "to the call for a model of T5.")

}  // namespace relpos
