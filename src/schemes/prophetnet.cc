// Qi et al. 2020 (ProphetNet): each query brings its own number for every bucket of distances.
//
//   score[h,i,j] += bias[h, i, bucket(pos_k - pos_q)],   buckets as T5's of one direction
//
// The model computes them from its hidden states by one linear map, whose results stand by bucket, then
// by head: view them as [batch, queries, buckets, heads] and permute. Not multiplied by the scale.
#include "relpos/scheme.h"
#include "schemes/common/buckets.h"

namespace relpos {

namespace {

struct ProphetNet {
  int64_t buckets = 32, max_distance = 128;

  void options(OptionList& o) {
    o.size("buckets", buckets, "classes of distances");
    o.size("max_distance", max_distance, "all distances from it on share the last bucket");
  }

  void terms(Builder& b) const {
    constexpr int64_t kMost = 4096;
    b.require(buckets <= kMost, "buckets: expected at most ", kMost, ", got ", buckets);
    const ClassMap map = common::Buckets(b.scheme(), buckets, max_distance, false).map();
    std::vector<double> identity(static_cast<size_t>(buckets * buckets), 0.0);
    for (int64_t n = 0; n < buckets; ++n) identity[static_cast<size_t>(n * (buckets + 1))] = 1.0;
    const Source table = b.fixed("identity", {buckets, buckets}, Init::each(std::move(identity)),
                                 "chooses the number of a bucket");
    const Source bias = b.input("bias", {kBatch, kHeads, kQueries, buckets}, Init::normal(1.0),
                                "a number of each query for every bucket");
    b.rows(map, table, {.factor = bias, .scale = 1.0});
  }
};

}  // namespace

RELPOS_SCHEME(prophetnet, ProphetNet, "ProphetNetBias",
              "each query brings its own number for every bucket of distances",
              "Qi et al. 2020, ProphetNet; Hugging Face ProphetNetNgramSelfAttention")

}  // namespace relpos
