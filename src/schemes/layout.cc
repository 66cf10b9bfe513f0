// Xu et al. 2021 (LayoutLMv2), Huang et al. 2022 (LayoutLMv3): T5's bias of three distances, those in the
// text and in both directions of the page.
//
//   score[h,i,j] += bias_scale (rel_pos_bias[h, bucket(pos_k - pos_q)]
//                   + rel_pos_x_bias[h, bucket(x_k - x_q)] + rel_pos_y_bias[h, bucket(y_k - y_q)])
//
// x and y are given with each call: the left and the lower edge of a token's box. LayoutLMv3's bias_scale
// is 1 / sqrt(head_dim).
#include "relpos/scheme.h"
#include "schemes/common/buckets.h"

namespace relpos {

namespace {

struct LayoutBias {
  int64_t heads = 0, buckets = 32, max_distance = 128, buckets_2d = 64, max_distance_2d = 256;
  double bias_scale = 1.0;

  void options(OptionList& o) {
    o.required("heads", heads, "query heads");
    o.size("buckets", buckets, "classes of distances in the text, an even number");
    o.size("max_distance", max_distance, "all distances from it on share the last bucket");
    o.size("buckets_2d", buckets_2d, "classes of distances on the page, an even number");
    o.size("max_distance_2d", max_distance_2d, "all distances from it on share the last bucket");
    o.number("bias_scale", bias_scale, "multiplies the biases, and not the scores");
    o.alias("scale");
  }

  void terms(Builder& b) const {
    const auto table = [&](const char* name, int64_t classes) {
      return bias_scale * b.parameter(name, {heads, classes}, Init::normal(0.02),
                                      "one number for each head and bucket");
    };
    const ClassMap text = common::Buckets(b.scheme(), buckets, max_distance, true).map();
    const ClassMap page = common::Buckets(b.scheme(), buckets_2d, max_distance_2d, true).map();
    const Source in_text = table("rel_pos_bias.weight", buckets);
    const Source in_x = table("rel_pos_x_bias.weight", buckets_2d);
    const Source in_y = table("rel_pos_y_bias.weight", buckets_2d);
    const Source q = b.integers("q_coordinates", {kBatch, 2, kQueries}, 1000, "x and y of queries");
    const Source k = b.integers("k_coordinates", {kBatch, 2, kKeys}, 1000, "x and y of keys");
    b.bias(text, in_text);
    b.bias(page, in_x, Along::given(q, k, 0));
    b.bias(page, in_y, Along::given(q, k, 1));
  }
};

}  // namespace

RELPOS_SCHEME(layout, LayoutBias, "LayoutBias",
              "learned numbers for buckets of distances in a text and on its page",
              "Xu et al. 2021, LayoutLMv2: Multi-modal Pre-training for Visually-rich Document "
              "Understanding, section 3.2")

}  // namespace relpos
