// Liu et al. 2022 (Swin v2): the bias of an offset within a window, by a small network.
//
//   score[h,i,j] += 16 sigmoid(W2 ReLU(W1 f + b1))[h],   f = (g(y_q - y_k), g(x_q - x_k))
//   g(d) = sign(d) log2(1 + 8 |d| / (side - 1)) / 3,  the side of `pretrained_window` where it is given
//
// Cosines instead of products, and the learned scale of each head, belong to the query and the key:
// normalise both, multiply the query, and attend with scale=1.
#include "schemes/common/patch_grid.h"

namespace relpos {

namespace {

struct SwinV2Bias {
  int64_t heads = 0, hidden = 512;
  std::vector<double> window;
  std::optional<int64_t> pretrained_window;

  void options(OptionList& o) {
    o.required("heads", heads, "query heads");
    o.required("window", window, "side of the window in tokens, or [height, width]");
    o.keyword_only();
    o.size("pretrained_window", pretrained_window,
           "side of the window that the weights were trained with; None: the window's own", 2);
    o.size("hidden", hidden, "size of the network's hidden layer");
  }

  void terms(Builder& b) const {
    const common::PatchGrid tokens(b, "window", window);
    b.require(hidden <= kLargestHeads, "hidden: expected at most ", kLargestHeads, ", got ",
              hidden);
    const ClassMap map = tokens.map();
    const auto logarithm = [](int64_t offset, int64_t side) {
      const double share =
          8.0 * static_cast<double>(offset) / std::max(1.0, static_cast<double>(side - 1));
      return std::copysign(std::log2(1.0 + std::fabs(share)) / 3.0, share);
    };
    Perceptron network;
    network.first_weight = b.parameter("continuous_position_bias_mlp.0.weight", {hidden, 2},
                                       Init::uniform(-0.7071067811865476, 0.7071067811865476),
                                       "of the offsets (y, x)");
    network.first_bias =
        b.parameter("continuous_position_bias_mlp.0.bias", {hidden},
                    Init::uniform(-0.7071067811865476, 0.7071067811865476), "of the hidden layer");
    const double bound = 1.0 / std::sqrt(static_cast<double>(hidden));
    network.second_weight = b.parameter("continuous_position_bias_mlp.2.weight", {heads, hidden},
                                        Init::uniform(-bound, bound), "to each head");
    network.features = [=, side = pretrained_window](int64_t entry, double* features) {
      const int64_t y = entry / tokens.stride() - (tokens.height - 1);
      const int64_t x = entry % tokens.stride() - (tokens.width - 1);
      features[0] = logarithm(y, side.value_or(tokens.height));
      features[1] = logarithm(x, side.value_or(tokens.width));
    };
    network.sigmoid = 16.0;
    b.bias(map, network);
    b.place(tokens);
  }
};

}  // namespace

RELPOS_SCHEME(swin_v2, SwinV2Bias, "SwinV2Bias",
              "the bias of a two-dimensional offset within a window, by a small network",
              "Liu et al. 2022, Swin Transformer V2, section 3.3, equations 3 and 4")

}  // namespace relpos
