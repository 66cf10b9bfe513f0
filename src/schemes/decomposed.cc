// Li et al. 2022 (MViTv2), as in SAM and ViTDet: rows of two tables, by how many rows and columns of an
// image lie between two patches.
//
//   score[h,i,j] += <q_i, rel_pos_h[y_q - y_k + height - 1]> + <q_i, rel_pos_w[x_q - x_k + width - 1]>
//
// Not multiplied by the scale. Tokens stand row by row.
#include "schemes/common/window.h"

namespace relpos {

namespace {

struct Decomposed {
  int64_t head_dim = 0;
  std::vector<double> grid;

  void options(OptionList& o) {
    o.required("head_dim", head_dim, "size of query and key heads");
    o.required("grid", grid, "patches on a side of the image, or [height, width]");
  }

  void terms(Builder& b) const {
    const common::Window patches(b, "grid", grid);
    const auto rows = [&](const char* name, int64_t side, const Along::Coordinate& coordinate) {
      const Source table =
          b.parameter(name, {2 * side - 1, head_dim}, Init::normal(0.02),
                      "a row for each offset, the key farthest right or below first");
      b.rows(ClassMap::zero_outside(1 - side, side - 1, /*reversed=*/true), table,
             {.scale = 1.0, .along = Along::coordinate(coordinate)});
    };
    rows("rel_pos_h", patches.height, [=](int64_t position) { return patches.row(position); });
    rows("rel_pos_w", patches.width, [=](int64_t position) { return patches.column(position); });
    b.place(patches);
  }
};

}  // namespace

RELPOS_SCHEME(decomposed, Decomposed, "Decomposed",
              "queries meet a row for the offset in height and one for that in width",
              "Li et al. 2022, MViTv2: Improved Multiscale Vision Transformers, section 4.1")

}  // namespace relpos
