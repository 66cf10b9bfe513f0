// OpenAI 2025 (gpt-oss): a score without a value joins the softmax of each row, so that a head may
// attend to nothing.
//
//   weight[h,i,j] = exp(score[h,i,j]) / (sum over j of exp(score[h,i,j]) + exp(sinks[h]))
//
// With per_query the scores are an input of the call, [B, H, Lq]. The log-sum-exp includes the sink.
#include "relpos/scheme.h"

namespace relpos {

namespace {

struct AttentionSink {
  int64_t heads = 0;
  bool per_query = false;

  void options(OptionList& o) {
    o.required("heads", heads, "query heads");
    o.keyword_only();
    o.flag("per_query", per_query, "the scores are an input of the call, one for each query");
  }

  void terms(Builder& b) const {
    b.sink(per_query ? b.input("sinks", {kBatch, kHeads, kQueries}, Init::normal(1.0),
                               "the score of each query's sink")
                     : b.parameter("sinks", {heads}, Init::normal(0.02),
                                   "the score of each head's sink"));
  }
};

}  // namespace

RELPOS_SCHEME(attention_sink, AttentionSink, "AttentionSink",
              "a score of each head, without a value, joins the softmax of every row",
              "OpenAI 2025, gpt-oss model card, Attention")

}  // namespace relpos
