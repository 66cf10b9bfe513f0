// Chen et al. 2022 (WavLM): T5's bias, multiplied by a gate of each query.
//
//   score[h,i,j] += gate[h,i] weight[bucket(pos_k - pos_q), h],   buckets as T5's of two directions
//
// The gate is given with each call: the model computes it from its hidden states.
#include "relpos/scheme.h"
#include "schemes/common/buckets.h"

namespace relpos {

namespace {

struct GatedBuckets {
  int64_t heads = 0, buckets = 320, max_distance = 800;

  void options(OptionList& o) {
    o.required("heads", heads, "query heads");
    o.size("buckets", buckets, "classes of distances, an even number");
    o.size("max_distance", max_distance, "all distances from it on share the last bucket");
  }

  void terms(Builder& b) const {
    const ClassMap map = common::Buckets(b.scheme(), buckets, max_distance, true).map();
    const Source weight = b.parameter("rel_attn_embed.weight", {buckets, heads}, Init::normal(1.0),
                                      "one number for each bucket and head");
    const Source gate = b.input("gate", {kBatch, kHeads, kQueries, 1}, Init::uniform(1.0, 3.0),
                                "multiplies the bias of each query");
    b.rows(map, weight.transposed().column(), {.factor = gate, .scale = 1.0});
  }
};

}  // namespace

RELPOS_SCHEME(wavlm, GatedBuckets, "GatedBuckets",
              "a learned number for each head and bucket of distances, gated by each query",
              "Chen et al. 2022, WavLM, section 3.1")

}  // namespace relpos
