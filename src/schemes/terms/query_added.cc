// u[h], added to the query for its product with the key.
#include "relpos/scheme.h"

namespace relpos {

namespace {

struct GivenQueryAdded {
  void options(OptionList&) {}

  void terms(Builder& b) const {
    b.query_added(b.input("added", {kAny, kHeadDim}, Init::normal(1.0), "a vector of each head",
                          {kHeads, kHeadDim}));
  }
};

}  // namespace

RELPOS_SCHEME(query_added, GivenQueryAdded, "QueryAdded", "a vector of each head joins the query",
              "terms.h, QueryAdded")

}  // namespace relpos
