// v_j + t[m(delta)] of a table [M, Dv], or [H, M, Dv] with by_head.
#include "schemes/common/given.h"

namespace relpos {

namespace {

struct GivenValueTable {
  common::GivenRows rows;
  bool by_head = false;

  void options(OptionList& o) {
    o.keyword_only();
    rows.options(o);
    o.flag("by_head", by_head, "each head has a table of its own");
  }

  void terms(Builder& b) const {
    const Source table = common::given_table(b, by_head, kAny, kHeadDim);
    b.values(rows.given(b), table);
  }
};

}  // namespace

RELPOS_SCHEME(value_table, GivenValueTable, "ValueTable", "rows of a table join the values",
              "terms.h, ValueTable")

}  // namespace relpos
