// Dai et al. 2019 (Transformer-XL): projected sinusoids of the distance join the keys.
//
//   score[h,i,j] = scale (<q_i + u_h, k_j> + <q_i + w_h, W_h R(n)>),   n = pos_q - pos_k
//   R(n) = [sin(n f_0), sin(n f_1), ..., cos(n f_0), cos(n f_1), ...],   f_p = 10000^(-2 p / width)
#include "schemes/common/frequencies.h"
#include "schemes/common/projection_sizes.h"
#include "schemes/common/sinusoids.h"

namespace relpos {

namespace {

struct TransformerXL {
  common::ProjectionSizes sizes;
  std::optional<int64_t> clamp_len;

  void options(OptionList& o) {
    sizes.options(o);
    o.keyword_only();
    o.size("clamp_len", clamp_len,
           "distances from it on, on either side, count as it; None: no limit");
  }

  void terms(Builder& b) const {
    const int64_t width = sizes.width(b);
    const Source weight = b.parameter("r_net.weight", {sizes.rows(), width}, Init::normal(0.02),
                                      "projects the sinusoids of a distance to each head");
    const Source u = b.parameter("r_w_bias", {sizes.heads, sizes.head_dim}, Init::normal(0.02),
                                 "joins the queries where they meet keys");
    const Source w = b.parameter("r_r_bias", {sizes.heads, sizes.head_dim}, Init::normal(0.02),
                                 "joins the queries where they meet distances");
    b.query_added(u);
    b.projected_rows(
        sizes.heads, weight,
        common::sinusoids(common::rotary_frequencies(width, 10000.0), {.farthest = clamp_len}), w);
  }
};

}  // namespace

RELPOS_SCHEME(transformer_xl, TransformerXL, "TransformerXL",
              "projected sinusoids of the distance join the keys, with two learned query biases",
              "Dai et al. 2019, Transformer-XL, section 3.3")

}  // namespace relpos
