// Liu et al. 2021 (Swin): a learned number for each head and offset of two pixels of a window.
//
//   score[h,i,j] += table[(y_q - y_k + Wh - 1)(2 Ww - 1) + x_q - x_k + Ww - 1, h]
//
// Offsets beyond the window add nothing.
#include "schemes/common/patch_grid.h"

namespace relpos {

namespace {

struct SwinBias {
  int64_t heads = 0;
  std::vector<double> window;

  void options(OptionList& o) {
    o.required("heads", heads, "query heads");
    o.required("window", window, "side of the window in tokens, or [height, width]");
  }

  void terms(Builder& b) const {
    const common::PatchGrid tokens(b, "window", window);
    const ClassMap map = tokens.map();
    const Source table =
        b.parameter("relative_position_bias_table", {map.classes(), heads}, Init::normal(0.02),
                    "one number for each offset (y, x) of query - key, from 1 - side up, and head");
    b.bias(map, table.transposed());
    b.place(tokens);
  }
};

}  // namespace

RELPOS_SCHEME(swin, SwinBias, "SwinBias",
              "a learned number for each head and two-dimensional offset within a window",
              "Liu et al. 2021, Swin Transformer, section 3.2, equation 4")

}  // namespace relpos
