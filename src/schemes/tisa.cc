// Wennberg, Henter 2021 (TISA): a sum of bells over the distance, learned for each head.
//
//   score[h,i,j] += sum_s amplitudes[h,s] exp(-|widths[h,s]| (delta - centres[h,s])^2)
//
// Added after the scale: multiply the amplitudes where a model scales them with the scores.
#include "relpos/scheme.h"

namespace relpos {

namespace {

struct TISA {
  int64_t heads = 0, kernels = 5;

  void options(OptionList& o) {
    o.required("heads", heads, "query heads");
    o.size("kernels", kernels, "bells of each head");
  }

  void terms(Builder& b) const {
    b.require(kernels <= kLargestHeads, "kernels: expected at most ", kLargestHeads, ", got ",
              kernels);
    const std::vector<int64_t> shape{heads, kernels};
    const Source amplitudes = b.parameter("amplitudes", shape, Init::normal(1.0), "heights"),
                 widths = b.parameter("widths", shape, Init::normal(1.0),
                                      "how narrow the bells are, by magnitude"),
                 centres = b.parameter("centres", shape, Init::normal(5.0),
                                       "distances, key - query, where the bells are highest");
    b.bias_sum(
        kernels,
        [](double delta, auto a, auto w, auto c) {
          return a * exp(-abs(w) * (delta - c) * (delta - c));
        },
        amplitudes, widths, centres);
  }
};

}  // namespace

RELPOS_SCHEME(tisa, TISA, "TISA", "a sum of bells over the distance, learned for each head",
              "Wennberg, Henter 2021, The Case for Translation-Invariant Self-Attention, 3.2")

}  // namespace relpos
