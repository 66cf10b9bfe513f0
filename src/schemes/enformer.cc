// Avsec et al. 2021 (Enformer): projected features of the distance, of three kinds and two signs.
//
//   score[h,i,j] = <scale q_i + u_h, k_j> + <scale q_i + v_h, W_h [f(n), sign(delta) f(n)]>,   n = |delta|
//   f: exponentials 2^(-n / half-life), half-lives from 2^3 to L; masks n < 2^m - 1, m = 1 ..;
//      gamma densities with means from L / F to L and deviation L / (2 F), divided by the largest of them
//
// L is the length of the call, or `length`; F features of each kind. u and v join after the scale: they
// are multiplied by sqrt(head_dim) here, and calls take the usual scale, 1 / sqrt(head_dim).
#include <algorithm>
#include <cmath>

#include "relpos/scheme.h"

namespace relpos {

namespace {

struct Enformer {
  int64_t heads = 0, head_dim = 0, features = 192;
  std::optional<int64_t> length;

  void options(OptionList& o) {
    o.required("heads", heads, "query heads");
    o.required("head_dim", head_dim, "size of a query and key head");
    o.size("features", features, "of a distance, a multiple of 6", 6);
    o.keyword_only();
    o.size("length", length, "one more than the last position; None: that of each call");
  }

  // Gamma densities at a distance, by the logarithms of their parts, for the features of a call.
  struct Gamma {
    std::vector<double> power, rate, offset;  // of the logarithm: power ln n - rate n - offset
    Gamma(double call_length, int64_t count) {
      const auto each = static_cast<double>(count);
      const double deviation = call_length / (2.0 * each), first = call_length / each;
      for (int64_t n = 0; n < count; ++n) {
        const double share = count == 1 ? 0.0 : static_cast<double>(n) / (each - 1.0);
        const double mean = first + share * (call_length - first);
        const double shape = mean * mean / (deviation * deviation);
        power.push_back(shape - 1.0);
        rate.push_back(mean / (deviation * deviation));
        offset.push_back(std::lgamma(shape) - shape * std::log(rate.back()));
      }
    }
    void write(double n, double* to) const {
      double largest = 0.0;
      for (size_t f = 0; f < power.size(); ++f) {
        to[f] = 1e-8;
        if (n > 0) to[f] += std::exp(power[f] * std::log(n) - rate[f] * n - offset[f]);
        largest = std::max(largest, to[f]);
      }
      for (size_t f = 0; f < power.size(); ++f) to[f] /= largest;
    }
  };

  static Builder::Features of_length(double call_length, int64_t each) {
    return [=, gamma = Gamma(call_length, each)](int64_t delta, double* to) {
      const double n = std::fabs(static_cast<double>(delta));
      for (int64_t f = 0; f < each; ++f) {
        const double share =
            each == 1 ? 0.0 : static_cast<double>(f) / static_cast<double>(each - 1);
        const double life = 3.0 + share * (std::log2(call_length) - 3.0);
        to[f] = std::exp2(-n / std::exp2(life));
        to[each + f] = std::exp2(static_cast<double>(f + 1)) - 1.0 > n ? 1.0 : 0.0;
      }
      gamma.write(n, to + 2 * each);
      const double sign = delta > 0 ? 1.0 : delta < 0 ? -1.0 : 0.0;
      for (int64_t f = 0; f < 3 * each; ++f) to[3 * each + f] = sign * to[f];
    };
  }

  void terms(Builder& b) const {
    b.require(features % 6 == 0, "features: expected a multiple of 6, got ", features);
    const Source weight = b.parameter("to_rel_k.weight", {heads * head_dim, features},
                                      Init::glorot_uniform(heads * head_dim, features),
                                      "projects the features of a distance to each head");
    const Source u = b.parameter("rel_content_bias", {heads, head_dim}, Init::normal(1.0),
                                 "joins the scaled queries where they meet keys");
    const Source v = b.parameter("rel_pos_bias", {heads, head_dim}, Init::normal(1.0),
                                 "joins the scaled queries where they meet distances");
    const double scale = std::sqrt(static_cast<double>(head_dim));
    b.query_added(scale * u);
    const auto of = [each = features / 6](int64_t positions) {
      return of_length(static_cast<double>(std::max<int64_t>(positions, 1)), each);
    };
    b.projected_rows(heads, weight, of, length, scale * v);
  }
};

}  // namespace

RELPOS_SCHEME(enformer, Enformer, "Enformer",
              "projected features of the distance: exponentials, central masks, gamma densities",
              "Avsec et al. 2021, Enformer, methods; enformer-pytorch Attention")

}  // namespace relpos
