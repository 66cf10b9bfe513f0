// Shaw et al. 2018, 3.3 on a graph, as in RAT-SQL: a row of a table for each class of pairs, which meets
// the query, or a vector of it.
//
//   score[h,i,j] += scale <a_i, table[classes[i,j]]>,   a_i the unrotated query or factor[h,i]
//
// All are inputs of each call.
#include "relpos/scheme.h"
#include "schemes/common/pair_classes.h"

namespace relpos {

namespace {

struct PairTable {
  common::PairInput classes;
  bool per_head = false, factor = false;
  std::optional<double> scale;

  void options(OptionList& o) {
    classes.options(o);
    o.flag("per_head", per_head, "each head has a table of its own: [heads, classes, size]");
    o.flag("factor", factor, "an input of the call meets the rows in place of the query");
    o.number("scale", scale, "multiplies the products; none: the scale of the scores");
  }

  void terms(Builder& b) const {
    constexpr int64_t kExampleRank = 5, kClasses = common::PairInput::kExampleClasses;
    std::vector<int64_t> shape{kAny, factor ? kAny : kHeadDim};
    std::vector<int64_t> example{kClasses, factor ? kExampleRank : kHeadDim};
    if (per_head) {
      shape.insert(shape.begin(), kAny);
      example.insert(example.begin(), kHeads);
    }
    const Source table = b.input("table", shape, Init::normal(0.5), "a row for each class of pairs",
                                 std::move(example));
    const Source bytes = classes.input(b);
    ColumnOptions options{.scale = scale};
    if (factor) {
      options.factor = b.input("factor", {kBatch, kHeads, kQueries, kAny}, Init::normal(1.0),
                               "a vector of each query, as long as a row of the table",
                               {kBatch, kHeads, kQueries, kExampleRank});
    }
    b.pair_rows(table, bytes, options, classes.hidden_class());
  }
};

}  // namespace

RELPOS_SCHEME(pair_rows, PairTable, "PairRows",
              "queries meet a row for the class of each pair, all of them inputs of the call",
              "Shaw et al. 2018, Self-Attention with Relative Position Representations, 3.3; Wang "
              "et al. 2020, RAT-SQL, 3.2")

}  // namespace relpos
