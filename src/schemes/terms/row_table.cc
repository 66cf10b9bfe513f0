// scale <a_i, r[m(delta)]>, a_i the query or a factor; the table is [M, r], or [H, M, r] with by_head.
#include "schemes/common/given.h"

namespace relpos {

namespace {

struct GivenRowTable {
  common::GivenRows rows;
  common::GivenProduct product;
  bool added = false;

  void options(OptionList& o) {
    o.keyword_only();
    rows.options(o);
    rows.along_option(o);
    product.options(o, "a tensor of the call meets the rows, not the query");
    o.flag("added", added, "a vector of each head is added to what meets the rows");
  }

  void terms(Builder& b) const {
    const Source table = product.table(b);
    RowOptions more{.factor = product.given_factor(b, kHeads, kQueries), .scale = product.scale};
    if (added) {
      more.added = b.input("added", {kHeads, product.rank()}, Init::normal(1.0), "of each head",
                           {kHeads, product.example_rank()});
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
