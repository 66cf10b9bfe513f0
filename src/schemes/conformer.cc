// Gulati et al. 2020 (Conformer): the projected sinusoids of Transformer-XL, on both sides.
//
//   score[h,i,j] = scale (<q_i + u_h, k_j> + <q_i + v_h, W_h R(n)>),   n = pos_q - pos_k
//   R(n) = [sin(n f_0), cos(n f_0), sin(n f_1), cos(n f_1), ...],   f_p = 10000^(-2 p / width)
#include "schemes/common/frequencies.h"
#include "schemes/common/projection_sizes.h"
#include "schemes/common/sinusoids.h"

namespace relpos {

namespace {

struct ConformerRelative {
  common::ProjectionSizes sizes;

  void options(OptionList& o) { sizes.options(o); }

  void terms(Builder& b) const {
    const int64_t width = sizes.width(b);
    const Init xavier = Init::glorot_uniform(sizes.heads, sizes.head_dim);
    const Source weight = b.parameter("linear_pos.weight", {sizes.rows(), width},
                                      Init::glorot_uniform(sizes.rows(), width),
                                      "projects the sinusoids of a distance to each head");
    const Source u = b.parameter("pos_bias_u", {sizes.heads, sizes.head_dim}, xavier,
                                 "joins the queries where they meet keys");
    const Source v = b.parameter("pos_bias_v", {sizes.heads, sizes.head_dim}, xavier,
                                 "joins the queries where they meet distances");
    b.query_added(u);
    const auto waves =
        common::sinusoids(common::rotary_frequencies(width, 10000.0), {.interleaved = true});
    b.projected_rows(sizes.heads, weight, waves, v);
  }
};

}  // namespace

RELPOS_SCHEME(conformer, ConformerRelative, "ConformerRelative",
              "projected sinusoids of the distance, on both sides, with two learned query biases",
              "Gulati et al. 2020, Conformer, section 2.1; after Dai et al. 2019")

}  // namespace relpos
