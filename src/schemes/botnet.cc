// Srinivas et al. 2021 (BoTNet): rows of two tables, by how many rows and columns of an image lie between
// two patches.
//
//   score[h,i,j] += scale (<q_i, height_rel[y_k - y_q + height - 1]> + <q_i, width_rel[x_k - x_q + width - 1]>)
//
// Tokens stand row by row.
#include "schemes/common/image_rows.h"

namespace relpos {

namespace {

struct BoTNet {
  common::ImageRows tables;

  void options(OptionList& o) { tables.options(o); }

  void terms(Builder& b) const {
    const double deviation = 1.0 / std::sqrt(static_cast<double>(tables.head_dim));
    tables.terms(b, {.height = "height_rel",
                     .width = "width_rel",
                     .init = Init::normal(deviation),
                     .doc = "a row for each offset, the key farthest left or above first",
                     .reversed = false,
                     .scale = {}});
  }
};

}  // namespace

RELPOS_SCHEME(botnet, BoTNet, "BoTNet",
              "queries meet a row for the offset in height and one for that in width, by the scale",
              "Srinivas et al. 2021, Bottleneck Transformers for Visual Recognition, section 3.1")

}  // namespace relpos
