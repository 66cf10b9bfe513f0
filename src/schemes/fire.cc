// Li et al. 2024 (FIRE): the bias of a distance, relative to how far the query could look back, by a
// small network.
//
//   score[h,i,j] += W_2 ReLU(W_0 x + b_0) + b_2   at h
//   x = ln(|c| n + 1) / (ln(|c| max(pos_q, T) + 1) + 1e-6),   n = |pos_q - pos_k|,
//   T = |L_multiplier| init_L
//
// Up to query T the bias depends on the distance alone, and that is what is computed here: calls with
// queries beyond T are refused.
#include <algorithm>
#include <cmath>

#include "relpos/scheme.h"

namespace relpos {

namespace {

struct FIRE {
  int64_t heads = 0, width = 32;
  double init_c = 0.1, init_L = 512.0;

  void options(OptionList& o) {
    o.required("heads", heads, "query heads");
    o.size("width", width, "size of the hidden layer");
    o.keyword_only();
    o.number("init_c", init_c, "c at the start");
    o.number("init_L", init_L, "T at the start, which L_multiplier multiplies");
  }

  void terms(Builder& b) const {
    b.require(init_L > 0, "init_L: expected a number above 0, got ", init_L);
    b.require(width <= 4096, "width: expected at most 4096, got ", width);
    const double in = 1.0, hidden = 1.0 / std::sqrt(static_cast<double>(width));
    Network network;
    const Source first = b.parameter("mlp.0.weight", {width, 1}, Init::uniform(-in, in), "of x"),
                 first_bias = b.parameter("mlp.0.bias", {width}, Init::uniform(-in, in),
                                          "of the hidden layer"),
                 second = b.parameter("mlp.2.weight", {heads, width},
                                      Init::uniform(-hidden, hidden), "to each head"),
                 second_bias = b.parameter("mlp.2.bias", {heads}, Init::uniform(-hidden, hidden),
                                           "of each head");
    network.layers = {{first, first_bias}, {second, second_bias}};
    network.numbers = {
        b.parameter("c", {1}, Init::constant(init_c), "how fast near distances come apart"),
        b.parameter("L_multiplier", {1}, Init::constant(1.0), "of T")};
    network.feature = distance_formula<2>([length = init_L](double delta, auto c, auto multiplier) {
      const auto rate = abs(c);
      return ln(rate * std::fabs(delta) + 1.0) / (ln(rate * abs(multiplier) * length + 1.0) + 1e-6);
    });
    network.check_reach = [length = init_L, who = std::string(b.scheme())](int64_t last_query,
                                                                           const double* numbers) {
      const double reach = std::fabs(numbers[1]) * length;
      check_value(static_cast<double>(last_query) <= reach, who,
                  ": the bias depends on the distance",
                  " alone up to query |L_multiplier| init_L = ", reach,
                  ", and this call has query ", last_query,
                  "; beyond it use relpos.compose.fire in Python, or give the bias as attn_mask");
    };
    b.bias(heads, std::move(network));
  }
};

}  // namespace

RELPOS_SCHEME(fire, FIRE, "FIRE",
              "the bias of a distance relative to a threshold, by a small network",
              "Li et al. 2024, Functional Interpolation for Relative Positions, section 3")

}  // namespace relpos
