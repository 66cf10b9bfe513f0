// The bias of a distance by a small network, in one dimension (x-transformers' DynamicPositionBias;
// after the continuous bias of Swin v2 and CrossFormer).
//
//   score[h,i,j] += W_depth SiLU(... SiLU(W_0 f + b_0) ...) + b_depth   at h
//   f = pos_q - pos_k; with log_distance=True sign(f) ln(|f| + 1)
//
// The form with a LayerNorm before each SiLU (norm=True there) is not this one.
#include <cmath>

#include "relpos/scheme.h"

namespace relpos {

namespace {

struct DynamicBias {
  int64_t heads = 0, width = 128, depth = 2;
  bool log_distance = false;

  void options(OptionList& o) {
    o.required("heads", heads, "query heads");
    o.size("width", width, "size of the hidden layers");
    o.size("depth", depth, "hidden layers");
    o.keyword_only();
    o.flag("log_distance", log_distance, "the network reads the distance's logarithm");
  }

  void terms(Builder& b) const {
    b.require(width <= 4096 && depth <= 64,
              "width: expected at most 4096, of at most 64 layers, got ", width, " of ", depth);
    Network network;
    network.activation = Network::Activation::kSiLU;
    network.feature = distance_formula<0>([logarithm = log_distance](double delta) {
      return logarithm ? std::copysign(std::log1p(std::fabs(delta)), -delta) : -delta;
    });
    int64_t in = 1;
    for (int64_t n = 0; n <= depth; ++n) {
      const int64_t out = n < depth ? width : heads;
      const std::string name = "mlp." + std::to_string(n) + (n < depth ? ".0" : "");
      // Distances in the hundreds would start biases as large, with the usual bound of 1.
      const bool raw = n == 0 && !log_distance;
      const double bound =
          raw ? 1.0 / static_cast<double>(width) : 1.0 / std::sqrt(static_cast<double>(in));
      const Init init = Init::uniform(-bound, bound);
      const Source weight = b.parameter(name + ".weight", {out, in}, init, "of this layer");
      network.layers.push_back({weight, b.parameter(name + ".bias", {out}, init, "of this layer")});
      in = out;
    }
    b.bias(heads, std::move(network));
  }
};

}  // namespace

RELPOS_SCHEME(dynamic_bias, DynamicBias, "DynamicBias", "the bias of a distance by a small network",
              "Wang et al. 2022, CrossFormer, section 3.3; x-transformers DynamicPositionBias")

}  // namespace relpos
