// Rows of two tables, by how many rows and columns of an image lie between two patches.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "schemes/common/patch_grid.h"

namespace relpos::common {

struct ImageRows {
  int64_t head_dim = 0;
  std::vector<double> grid;

  void options(OptionList& o) {
    o.required("head_dim", head_dim, "size of query and key heads");
    o.required("grid", grid, "patches on a side of the image, or [height, width]");
  }

  struct AxisTables {
    const char *height, *width;  // names of the tables
    Init init;
    const char* doc;
    bool reversed;  // the first row is of the key farthest right or below
    std::optional<double> scale;
  };
  // Tables [2 height - 1, head_dim] and [2 width - 1, head_dim]. Tokens stand row by row.
  void terms(Builder& b, const AxisTables& form) const {
    const PatchGrid patches(b, "grid", grid);
    const auto rows = [&](const char* name, int64_t side, const Along::Coordinate& coordinate) {
      const Source table = b.parameter(name, {2 * side - 1, head_dim}, form.init, form.doc);
      b.rows(ClassMap::zero_outside(1 - side, side - 1, form.reversed), table,
             {.scale = form.scale, .along = Along::coordinate(coordinate)});
    };
    rows(form.height, patches.height, [=](int64_t position) { return patches.row(position); });
    rows(form.width, patches.width, [=](int64_t position) { return patches.column(position); });
    b.place(patches);
  }
};

}  // namespace relpos::common
