// b[h, m(delta)] of a table [H, M], or of [1, M] for all heads.
#include "schemes/common/given.h"

namespace relpos {

namespace {

struct GivenDistanceBias {
  common::GivenRows rows;
  std::optional<std::vector<double>> grid;

  void options(OptionList& o) {
    o.keyword_only();
    rows.options(o);
    rows.along_option(o);
    o.values(
        "grid", grid,
        "sides of a grid in which tokens stand row by row, the last one fastest: distances are "
        "those of offsets, in the order of a table of all of them");
  }

  void terms(Builder& b) const {
    const Source table =
        b.input("table", {kAny, kAny}, Init::normal(1.0),
                "a number for each head, or for all, and row", {kHeads, common::kExampleRows});
    const GivenMap map = rows.given(b);
    b.bias(map, table, rows.coordinates(b));
    if (grid) b.place(common::grid_place(b, *grid));
  }
};

}  // namespace

RELPOS_SCHEME(distance_bias, GivenDistanceBias, "DistanceBias",
              "a number for each head and row of distances", "terms.h, DistanceBias")

}  // namespace relpos
