// Tang et al. 2023 (UDOP): T5's bias of three distances, those in the text, across the page and down it.
//
//   score[h,i,j] += biases.0[bucket(pos_k - pos_q), h] + biases.1[bucket(trunc((x_k - x_q) / unit)), h]
//                   + biases.2[bucket(trunc((y_k - y_q) / unit)), h]
//
// x and y are given with each call, as whole numbers: the middle of a token's box. UDOP counts hundredths
// of the page. With boxes in thousandths, x = left + right edge is twice the middle, and a unit is 20.
#include "relpos/scheme.h"
#include "schemes/common/buckets.h"

namespace relpos {

namespace {

struct UdopBias {
  int64_t heads = 0, buckets = 32, max_distance = 128, max_distance_2d = 100, unit = 20;

  void options(OptionList& o) {
    o.required("heads", heads, "query heads");
    o.size("buckets", buckets, "classes of distances, an even number");
    o.size("max_distance", max_distance, "all distances in text from it on share the last bucket");
    o.size("max_distance_2d", max_distance_2d,
           "all distances on the page from so many units on share the last bucket");
    o.size("unit", unit, "distances on the page count in units of it, rounded towards 0");
  }

  void terms(Builder& b) const {
    b.require(unit <= kLargestHeads && max_distance_2d <= kLargestHeads,
              "unit, max_distance_2d: expected sizes up to ", kLargestHeads, ", got ", unit,
              " and ", max_distance_2d);
    const auto table = [&](const char* name) {
      return b
          .parameter(name, {buckets, heads}, Init::glorot_uniform(buckets, heads),
                     "one number for each bucket and head")
          .transposed();
    };
    const ClassMap text = common::Buckets(b.scheme(), buckets, max_distance, true).map();
    const ClassMap page = common::Buckets(b.scheme(), buckets, max_distance_2d, true).map(unit);
    const Source in_text = table("biases.0.relative_attention_bias.weight");
    const Source across = table("biases.1.relative_attention_bias.weight");
    const Source down = table("biases.2.relative_attention_bias.weight");
    const Source q = b.integers("q_coordinates", {kBatch, 2, kQueries}, 2000, "x and y of queries");
    const Source k = b.integers("k_coordinates", {kBatch, 2, kKeys}, 2000, "x and y of keys");
    b.bias(text, in_text);
    b.bias(page, across, Along::given(q, k, 0));
    b.bias(page, down, Along::given(q, k, 1));
  }
};

}  // namespace

RELPOS_SCHEME(udop, UdopBias, "UdopBias",
              "learned numbers for buckets of distances in a text, across its page and down it",
              "Tang et al. 2023, UDOP: Unifying Vision, Text, and Layout for Universal Document "
              "Processing, section 3.2")

}  // namespace relpos
