// Simeoni et al. 2025 (DINOv3): axial RoPE by the centres of patches, which reach from -1 to 1 whatever
// the size of the image.
//
//   the first half of the pairs, p < d / 4, turns by 2 pi y base^(-4 p / d), the second by x alike,
//   y = (2 row + 1 - height) / height, x = (2 column + 1 - width) / width,   d = rotary_dim
//
// Tokens stand row by row; the first `prefix` of them belong to no patch and do not turn.
#include <numbers>

#include "schemes/common/patch_grid.h"
#include "schemes/common/rotary.h"

namespace relpos {

namespace {

struct DINOv3RoPE {
  common::Rotary rotary{.base = 100.0};
  std::vector<double> grid;
  int64_t prefix = 0;

  void options(OptionList& o) {
    rotary.options(o);
    o.required("grid", grid, "patches on a side of the image, or [height, width]");
    o.size("prefix", prefix, "tokens before the patches, which do not turn", 0);
  }

  void terms(Builder& b) const {
    const common::PatchGrid patches(b, "grid", grid, prefix);
    Rotation turn = rotary.rotation(b);
    b.require(turn.dims % 4 == 0, "rotary_dim: expected a multiple of 4, got ", turn.dims);
    const std::vector<double> half = rotary.frequencies(turn.dims / 2, rotary.base);
    std::vector<double>& frequency = turn.by_position().frequency;
    std::vector<int> axes;
    for (size_t p = 0; p < frequency.size(); ++p) {
      const int axis = p < half.size() ? 0 : 1;
      const auto side = static_cast<double>(axis == 0 ? patches.height : patches.width);
      axes.push_back(axis);
      frequency[p] = 2.0 * std::numbers::pi / side * half[p % half.size()];
    }
    b.place(patches);
    const auto coordinate = [=](int axis, int64_t position) {
      if (patches.in_prefix(position)) return int64_t{0};
      return axis == 0 ? 2 * patches.row(position) + 1 - patches.height
                       : 2 * patches.column(position) + 1 - patches.width;
    };
    b.rotation(turn, TurnBy::Coordinates{axes, coordinate});
  }
};

}  // namespace

RELPOS_SCHEME(rope_dinov3, DINOv3RoPE, "DINOv3RoPE",
              "queries and keys turn by where a patch stands between the edges of the image",
              "Simeoni et al. 2025, DINOv3, section 3.2")

}  // namespace relpos
