// scale <c_j, r[m(delta)]>, c_j the key or a factor; the table is [M, r], or [H, M, r] with by_head.
#include "schemes/common/given.h"

namespace relpos {

namespace {

struct GivenColumnTable {
  common::GivenRows rows;
  common::GivenProduct product;

  void options(OptionList& o) {
    o.keyword_only();
    rows.options(o);
    product.options(o, "a tensor of the call meets the rows, not the key");
  }

  void terms(Builder& b) const {
    const Source table = product.table(b);
    const ColumnOptions more{product.given_factor(b, kAny, kKeys), product.scale};
    b.columns(rows.given(b), table, more);
  }
};

}  // namespace

RELPOS_SCHEME(column_table, GivenColumnTable, "ColumnTable", "rows of a table meet keys",
              "terms.h, ColumnTable")

}  // namespace relpos
