// Shaw et al. 2018, 3.3 on a graph, as in RAT-SQL: a row of a table for each class of pairs, which meets
// the query, or a vector of it.
//
//   score[h,i,j] += scale <a_i, table[classes[i,j]]>,   a_i the unrotated query or factor[h,i]
//
// All are inputs of each call.
#include "schemes/common/given.h"
#include "schemes/common/pair_classes.h"

namespace relpos {

namespace {

struct GivenPairRows {
  common::PairInput classes;
  common::GivenProduct product;

  void options(OptionList& o) {
    o.keyword_only();
    classes.options(o);
    product.options(o, "a tensor of the call meets the rows, not the query");
  }

  void terms(Builder& b) const {
    const Source table = product.table(b), bytes = classes.input(b);
    const ColumnOptions more{product.given_factor(b, kHeads, kQueries), product.scale};
    b.pair_rows(table, bytes, more, classes.hidden_class());
  }
};

}  // namespace

RELPOS_SCHEME(pair_rows, GivenPairRows, "PairRows",
              "queries meet a row for the class of each pair, all of them inputs of the call",
              "Shaw et al. 2018, Self-Attention with Relative Position Representations, 3.3; Wang "
              "et al. 2020, RAT-SQL, 3.2")

}  // namespace relpos
