// key_bias[h, j], or key_bias[b, h, j] with by_row.
#include "relpos/scheme.h"

namespace relpos {

namespace {

struct GivenKeyBias {
  bool by_row = false;

  void options(OptionList& o) {
    o.keyword_only();
    o.flag("by_row", by_row, "each batch row has values of its own");
  }

  void terms(Builder& b) const {
    std::vector<int64_t> shape{kAny, kKeys};
    if (by_row) shape = {kBatch, kHeads, kKeys};
    std::vector<int64_t> example = shape;
    if (!by_row) example[0] = kHeads;
    b.key_bias(b.input("values", shape, Init::normal(1.0), "of each head and key", example));
  }
};

}  // namespace

RELPOS_SCHEME(key_bias, GivenKeyBias, "KeyBias", "a number of each key joins its scores",
              "terms.h, KeyBias")

}  // namespace relpos
