// scale <c_j, r[m(delta)]>, c_j the key or a factor; the table is [M, r], or [H, M, r] with by_head.
#include "schemes/common/given.h"

namespace relpos {

namespace {

struct GivenColumnTable {
  common::GivenRows rows;
  bool by_head = false, factor = false;
  std::optional<double> scale;

  void options(OptionList& o) {
    o.keyword_only();
    rows.options(o);
    o.flag("by_head", by_head, "each head has a table of its own");
    o.flag("factor", factor, "a tensor of the call meets the rows, not the key");
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
    ColumnOptions more;
    more.scale = scale;
    if (factor) {
      more.factor = b.input("factor", {kBatch, kAny, kKeys, kAny}, Init::normal(1.0),
                            "what meets the rows", {kBatch, kHeads, kKeys, kRank});
    }
    const GivenMap map = rows.given(b);
    b.columns(map, table, more);
  }
};

}  // namespace

RELPOS_SCHEME(column_table, GivenColumnTable, "ColumnTable", "rows of a table meet keys",
              "terms.h, ColumnTable")

}  // namespace relpos
