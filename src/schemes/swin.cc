// Liu et al. 2021 (Swin): a learned number for each head and offset of two pixels of a window.
//
//   score[h,i,j] += table[(y_q - y_k + Wh - 1)(2 Ww - 1) + x_q - x_k + Ww - 1, h]
//
// Token t of a window, row by row, stands at y (2 Ww - 1) + x: then the row is the distance of the
// tokens, mirrored and shifted. Offsets beyond the window add nothing.
#include <algorithm>
#include <cmath>

#include "relpos/scheme.h"

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
    constexpr double kMost = 1 << 20;
    b.check((window.size() == 1 || window.size() == 2) &&
                std::all_of(window.begin(), window.end(),
                            [](double side) {
                              return side >= 1 && side <= kMost && side == std::floor(side);
                            }),
            "window: expected one or two whole numbers of 1 to 2^20");
    const auto height = static_cast<int64_t>(window.front());
    const auto width = static_cast<int64_t>(window.back());
    const int64_t stride = 2 * width - 1, farthest = (height - 1) * stride + width - 1;
    const Source table =
        b.parameter("relative_position_bias_table", {2 * farthest + 1, heads}, Init::normal(0.02),
                    "one number for each offset (y, x) and head, both from "
                    "query - key = 1 - side up");
    b.bias(ClassMap::zero_outside(-farthest, farthest, /*reversed=*/true), table.transposed());
    b.place([width, stride](int64_t token) {
      const int64_t y = token >= 0 ? token / width : -((width - 1 - token) / width);
      return y * stride + (token - y * width);
    });
  }
};

}  // namespace

RELPOS_SCHEME(swin, SwinBias, "SwinBias",
              "a learned number for each head and two-dimensional offset within a window",
              "Liu et al. 2021, Swin Transformer, section 3.2, equation 4")

}  // namespace relpos
