// Srinivas et al. 2021 (BoTNet): rows of two tables, by how many rows and columns of an image lie between
// two patches.
//
//   score[h,i,j] += scale (<q_i, height_rel[y_k - y_q + height - 1]> + <q_i, width_rel[x_k - x_q + width - 1]>)
//
// Tokens stand row by row.
#include "schemes/common/window.h"

namespace relpos {

namespace {

struct BoTNet {
  int64_t head_dim = 0;
  std::vector<double> grid;

  void options(OptionList& o) {
    o.required("head_dim", head_dim, "size of query and key heads");
    o.required("grid", grid, "patches on a side of the image, or [height, width]");
  }

  void terms(Builder& b) const {
    const common::Window patches(b, "grid", grid);
    const auto rows = [&](const char* name, int64_t side, const Along::Coordinate& coordinate) {
      const double deviation = 1.0 / std::sqrt(static_cast<double>(head_dim));
      const Source table =
          b.parameter(name, {2 * side - 1, head_dim}, Init::normal(deviation),
                      "a row for each offset, the key farthest left or above first");
      b.rows(ClassMap::zero_outside(1 - side, side - 1), table,
             {.along = Along::coordinate(coordinate)});
    };
    rows("height_rel", patches.height, [=](int64_t position) { return patches.row(position); });
    rows("width_rel", patches.width, [=](int64_t position) { return patches.column(position); });
    b.place(patches);
  }
};

}  // namespace

RELPOS_SCHEME(botnet, BoTNet, "BoTNet",
              "queries meet a row for the offset in height and one for that in width, by the scale",
              "Srinivas et al. 2021, Bottleneck Transformers for Visual Recognition, section 3.1")

}  // namespace relpos
