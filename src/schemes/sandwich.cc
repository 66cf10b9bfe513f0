// Chi et al. 2023 (Sandwich): what sinusoids added to tokens would give their products, and no more.
//
//   score[h,i,j] += (sum_{k=1}^{D/2} cos(delta / 10000^(2 k / D)) - D/2) / (8 h / heads),   h = 1 .. heads
#include <cmath>

#include "relpos/scheme.h"

namespace relpos {

namespace {

struct Sandwich {
  int64_t heads = 0, dims = 128;

  void options(OptionList& o) {
    o.required("heads", heads, "query heads");
    o.size("dims", dims, "D, the size of the sinusoids, an even number", 2);
  }

  void terms(Builder& b) const {
    b.require(dims % 2 == 0 && dims <= kLargestHeads, "dims: expected an even number up to ",
              kLargestHeads, ", got ", dims);
    std::vector<double> ratios;
    for (int64_t h = 1; h <= heads; ++h) {
      ratios.push_back(8.0 * static_cast<double>(h) / static_cast<double>(heads));
    }
    const Source ratio =
        b.fixed("compression_ratio", {heads}, Init::each(ratios), "divides each head's bias");
    const auto waves = [size = dims](int64_t delta) {
      const auto d = static_cast<double>(size);
      double sum = 0.0;
      for (int64_t k = 1; k <= size / 2; ++k) {
        const double frequency = std::pow(10000.0, -2.0 * static_cast<double>(k) / d);
        const double wave = std::sin(0.5 * static_cast<double>(delta) * frequency);
        sum -= 2.0 * wave * wave;  // cos - 1, without cancellation
      }
      return sum;
    };
    b.bias_of(waves, [](double sum, auto by) { return sum / by; }, ratio);
  }
};

}  // namespace

RELPOS_SCHEME(sandwich, Sandwich, "Sandwich",
              "the products of sinusoids at two positions, for each head by another factor",
              "Chi, Fan, Rudnicky, Ramadge 2023, Dissecting Transformer Length Extrapolation, 4")

}  // namespace relpos
