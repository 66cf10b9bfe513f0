// scale <a_i, r[m(delta)]>, a_i the query or a factor; the table is [M, r], or [H, M, r] with by_head.
#include "schemes/common/given.h"

namespace relpos {

namespace {

struct GivenRowTable {
  common::GivenRows rows;
  bool by_head = false, factor = false, added = false;
  std::optional<double> scale;

  void options(OptionList& o) {
    o.keyword_only();
    rows.options(o);
    rows.along_option(o);
    o.flag("by_head", by_head, "each head has a table of its own");
    o.flag("factor", factor, "a tensor of the call meets the rows, not the query");
    o.flag("added", added, "a vector of each head is added to what meets the rows");
    o.number("scale", scale, "multiplies the products; None: the scale of the scores");
  }

  void terms(Builder& b) const {
    constexpr int64_t kRows = 5, kRank = 3;
    std::vector<int64_t> shape{kAny, factor ? kAny : kHeadDim};
    std::vector<int64_t> example{kRows, factor ? kRank : kHeadDim};
    if (by_head) {
      shape.insert(shape.begin(), kAny);
      example.insert(example.begin(), kHeads);
    }
    const Source table = b.input("table", shape, Init::normal(1.0), "the rows", std::move(example));
    RowOptions more;
    more.scale = scale;
    if (factor) {
      more.factor = b.input("factor", {kBatch, kHeads, kQueries, kAny}, Init::normal(1.0),
                            "what meets the rows", {kBatch, kHeads, kQueries, kRank});
    }
    if (added) {
      more.added = b.input("added", {kHeads, factor ? kAny : kHeadDim}, Init::normal(1.0),
                           "of each head", {kHeads, factor ? kRank : kHeadDim});
    }
    const GivenMap map = rows.given(b);
    more.along = rows.coordinates(b);
    b.rows(map, table, more);
  }
};

}  // namespace

RELPOS_SCHEME(row_table, GivenRowTable, "RowTable", "rows of a table meet queries",
              "terms.h, RowTable")

}  // namespace relpos
