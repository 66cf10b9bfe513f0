// Graham et al. 2021 (LeViT): a learned number for each head and pair of distances along the two axes,
// without their signs.
//
//   score[h,i,j] += attention_biases[h, |y_q - y_k| width + |x_q - x_k|]
//
// Offsets beyond the grid add nothing. Queries of every second patch are placed by q_positions.
#include <cstdlib>

#include "schemes/common/patch_grid.h"

namespace relpos {

namespace {

struct LevitBias {
  int64_t heads = 0;
  std::vector<double> grid;

  void options(OptionList& o) {
    o.required("heads", heads, "query heads");
    o.required("grid", grid, "patches on a side of the image, or [height, width]");
  }

  void terms(Builder& b) const {
    const common::PatchGrid patches(b, "grid", grid);
    patches.require_memory(b, "grid");
    const Source biases =
        b.parameter("attention_biases", {heads, patches.height * patches.width},
                    Init::constant(0.0), "one number for each head and distances (y, x)");
    const auto row = [&](int64_t delta) {
      const auto [y, x] = patches.offset(delta);
      return std::abs(y) * patches.width + std::abs(x);
    };
    const int64_t reach = patches.farthest();
    b.bias(common::by_distance(b, -reach, reach, common::Beyond::kNone, row), biases);
    b.place(patches);
  }
};

}  // namespace

RELPOS_SCHEME(levit, LevitBias, "LevitBias",
              "a learned number for each head and distances along the two axes of an image",
              "Graham et al. 2021, LeViT, section 4.2, attention bias")

}  // namespace relpos
