// Li et al. 2022 (MViTv2), as in SAM and ViTDet: rows of two tables, by how many rows and columns of an
// image lie between two patches.
//
//   score[h,i,j] += <q_i, rel_pos_h[y_q - y_k + height - 1]> + <q_i, rel_pos_w[x_q - x_k + width - 1]>
//
// Not multiplied by the scale. Tokens stand row by row.
#include "schemes/common/image_rows.h"

namespace relpos {

namespace {

struct Decomposed {
  common::ImageRows tables;

  void options(OptionList& o) { tables.options(o); }

  void terms(Builder& b) const {
    tables.terms(b, {.height = "rel_pos_h",
                     .width = "rel_pos_w",
                     .init = Init::normal(0.02),
                     .doc = "a row for each offset, the key farthest right or below first",
                     .reversed = true,
                     .scale = 1.0});
  }
};

}  // namespace

RELPOS_SCHEME(decomposed, Decomposed, "Decomposed",
              "queries meet a row for the offset in height and one for that in width",
              "Li et al. 2022, MViTv2: Improved Multiscale Vision Transformers, section 4.1")

}  // namespace relpos
