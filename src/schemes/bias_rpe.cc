// A learned number for each head and clipped distance (the scalar form of Shaw et al. 2018).
//
//   score[h,i,j] += biases[h, clamp(pos_q - pos_k, -(r - 1), r - 1) + r - 1],  r = max_distance
#include "relpos/scheme.h"

namespace relpos {

namespace {

struct BiasRPE {
  int64_t heads = 0, max_distance = 0;

  void options(OptionList& o) {
    o.required("heads", heads, "query heads");
    o.required("max_distance", max_distance, "distances from max_distance - 1 on share one number");
  }

  void terms(Builder& b) const {
    const int64_t farthest = max_distance - 1;
    const Source biases =
        b.parameter("biases", {heads, 2 * farthest + 1}, Init::constant(0.0),
                    "one number for each head and distance, farthest future first");
    b.bias(ClassMap::clamp(-farthest, farthest, /*reversed=*/true), biases);
  }
};

}  // namespace

RELPOS_SCHEME(bias_rpe, BiasRPE, "BiasRPE", "a learned number for each head and clipped distance",
              "Geron 2025, Hands-On Machine Learning, appendix D; after Shaw et al. 2018, 3.2")

}  // namespace relpos
