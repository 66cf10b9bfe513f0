// Gulati et al. 2020 (Conformer): the projected sinusoids of Transformer-XL, on both sides.
//
//   score[h,i,j] = scale (<q_i + u_h, k_j> + <q_i + v_h, W_h R(n)>),   n = pos_q - pos_k
//   R(n) = [sin(n f_0), cos(n f_0), sin(n f_1), cos(n f_1), ...],   f_p = 10000^(-2 p / width)
#include <cmath>

#include "relpos/scheme.h"
#include "schemes/common/frequencies.h"

namespace relpos {

namespace {

struct ConformerRelative {
  int64_t heads = 0, head_dim = 0;
  std::optional<int64_t> model_width;

  void options(OptionList& o) {
    o.required("heads", heads, "query heads");
    o.required("head_dim", head_dim, "size of a query and key head");
    o.size("width", model_width,
           "sines and cosines of a distance, an even number (d_model); None: heads head_dim", 2);
  }

  void terms(Builder& b) const {
    const int64_t width = model_width.value_or(heads * head_dim);
    b.require(width % 2 == 0, "width: expected an even number, got ", width);
    const Init xavier = Init::glorot_uniform(heads, head_dim);
    const Source weight = b.parameter("linear_pos.weight", {heads * head_dim, width},
                                      Init::glorot_uniform(heads * head_dim, width),
                                      "projects the sinusoids of a distance to each head");
    const Source u = b.parameter("pos_bias_u", {heads, head_dim}, xavier,
                                 "joins the queries where they meet keys");
    const Source v = b.parameter("pos_bias_v", {heads, head_dim}, xavier,
                                 "joins the queries where they meet distances");
    b.query_added(u);
    b.projected_rows(
        heads, weight,
        [frequencies = common::rotary_frequencies(width, 10000.0)](int64_t delta,
                                                                   double* features) {
          for (size_t p = 0; p < frequencies.size(); ++p) {
            const double angle = static_cast<double>(-delta) * frequencies[p];
            features[2 * p] = std::sin(angle);
            features[2 * p + 1] = std::cos(angle);
          }
        },
        v);
  }
};

}  // namespace

RELPOS_SCHEME(conformer, ConformerRelative, "ConformerRelative",
              "projected sinusoids of the distance, on both sides, with two learned query biases",
              "Gulati et al. 2020, Conformer, section 2.1; after Dai et al. 2019")

}  // namespace relpos
