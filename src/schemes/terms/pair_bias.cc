// A number for each head and class of pairs, as for the paths of a graph in Ying et al. 2021
// (Graphormer), the edges of a tree of code, or buckets of timestamps.
//
//   score[h,i,j] += table[h, classes[i,j]]
//
// Both are inputs of each call.
#include "schemes/common/pair_classes.h"

namespace relpos {

namespace {

struct GivenPairBias {
  common::PairInput classes;

  void options(OptionList& o) {
    o.keyword_only();
    classes.options(o);
  }

  void terms(Builder& b) const {
    const Source table = b.input("table", {kAny, kAny}, Init::normal(1.0),
                                 "a number for each head, or one row for all, and class",
                                 {kHeads, common::kExampleRows});
    b.pair_bias(table, classes.input(b), classes.hidden_class());
  }
};

}  // namespace

RELPOS_SCHEME(
    pair_bias, GivenPairBias, "PairBias",
    "numbers of heads for classes of pairs, both inputs of the call",
    "Ying et al. 2021, Do Transformers Really Perform Bad for Graph Representation?, 3.1.2")

}  // namespace relpos
