// past[h] min(delta, 0) + future[h] max(delta, 0).
#include "relpos/scheme.h"

namespace relpos {

namespace {

struct GivenSlopes {
  std::string future = "given";

  void options(OptionList& o) {
    o.keyword_only();
    o.choice("future", future, {"given", "symmetric"},
             "slopes of their own, or those of the past with the other sign");
  }

  void terms(Builder& b) const {
    const std::vector<int64_t> heads{kHeads};
    const Source past = b.input("past", heads, Init::uniform(0, 1), "of each head");
    if (future == "symmetric") {
      b.slopes(past, -past);
    } else {
      b.slopes(past, b.input("future", heads, Init::uniform(-1, 0), "of each head"));
    }
  }
};

}  // namespace

RELPOS_SCHEME(slopes, GivenSlopes, "Slopes", "a bias of each head that is linear on both sides",
              "terms.h, Slopes")

}  // namespace relpos
