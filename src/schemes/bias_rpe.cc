// A learned number for each head and clipped distance (the scalar form of Shaw et al. 2018).
//
//   score[h,i,j] += biases[h, clamp(pos_q - pos_k, -right, r - 1) + right],  r = max_distance
//
// symmetric: biases[h, clamp(|pos_q - pos_k|, 0, r - 1)]; right: r - 1 unless given
#include "relpos/scheme.h"
#include "schemes/common/maps.h"

namespace relpos {

namespace {

struct BiasRPE {
  int64_t heads = 0, max_distance = 0;
  std::optional<int64_t> future;
  bool symmetric = false;

  void options(OptionList& o) {
    o.required("heads", heads, "query heads");
    o.required("max_distance", max_distance, "distances from max_distance - 1 on share one number");
    o.keyword_only();
    o.size("right", future, "future distances from it on share one number; None: max_distance - 1",
           0);
    o.flag("symmetric", symmetric, "past and future share their numbers, distance 0 first");
  }

  void terms(Builder& b) const {
    const int64_t farthest = max_distance - 1, right = future.value_or(farthest);
    b.require(!symmetric || right == farthest,
              "right: expected none with symmetric=True, which has one for both sides, got ",
              right);
    const int64_t rows = symmetric ? max_distance : farthest + right + 1;
    const Source biases =
        b.parameter("biases", {heads, rows}, Init::constant(0.0),
                    symmetric ? "one number for each head and distance, nearest first"
                              : "one number for each head and distance, farthest future first");
    b.bias(symmetric ? common::magnitudes(b, farthest)
                     : ClassMap::clamp(-farthest, right, /*reversed=*/true),
           biases);
  }
};

}  // namespace

RELPOS_SCHEME(bias_rpe, BiasRPE, "BiasRPE", "a learned number for each head and clipped distance",
              "Geron 2025, Hands-On Machine Learning, appendix D; after Shaw et al. 2018, 3.2")

}  // namespace relpos
