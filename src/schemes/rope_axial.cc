// RoPE of images: half of the pairs turn by the row of a patch, half by its column.
//
//   ladder "each":   the first half of the pairs, p < d / 4, turns by y * base^(-4 p / d), the second by
//                    x alike,   d = rotary_dim
//   ladder "shared": one ladder base^(-2 n / d): y takes its even entries, x the odd ones (Pixtral)
//
// Tokens stand row by row; the first `prefix` of them belong to no patch and do not turn.
#include "schemes/common/patch_grid.h"
#include "schemes/common/rotary.h"

namespace relpos {

namespace {

struct AxialRoPE {
  common::Rotary rotary;
  std::vector<double> grid;
  std::string first = "y", ladder = "each";
  int64_t prefix = 0, origin = 0;

  void options(OptionList& o) {
    rotary.options(o);
    o.required("grid", grid, "patches on a side of the image, or [height, width]");
    o.choice("first", first, {"y", "x"}, "what the first half of the pairs turns by");
    o.choice(
        "ladder", ladder, {"each", "shared"},
        "frequencies of half the size for either axis, or one ladder that they share in turns");
    o.size("prefix", prefix, "tokens before the patches, which do not turn", 0);
    o.size("origin", origin, "row and column of the first patch (Llama 4: 1)", 0);
  }

  void terms(Builder& b) const {
    const common::PatchGrid patches(b, "grid", grid, prefix);
    Rotation turn = rotary.rotation(b);
    b.require(turn.dims % 4 == 0, "rotary_dim: expected a multiple of 4, got ", turn.dims);
    const std::vector<double> half = rotary.frequencies(turn.dims / 2, rotary.base);
    std::vector<double>& frequency = turn.by_position().frequency;
    const std::vector<double> whole = frequency;
    std::vector<int> axes;
    const size_t pairs = whole.size(), of_axis = pairs / 2;
    for (size_t p = 0; p < pairs; ++p) {
      const bool second = p >= of_axis;
      const bool column = second != (first == "x");
      const size_t n = p - (second ? of_axis : 0);
      axes.push_back(column ? 1 : 0);
      frequency[p] = ladder == "each" ? half[n] : whole[2 * n + (column ? 1 : 0)];
    }
    b.place(patches);
    const auto coordinate = [=, at = origin](int axis, int64_t position) {
      if (patches.in_prefix(position)) return int64_t{0};
      return at + (axis == 0 ? patches.row(position) : patches.column(position));
    };
    b.rotation(turn, TurnBy::Coordinates{axes, coordinate});
  }
};

}  // namespace

RELPOS_SCHEME(rope_axial, AxialRoPE, "AxialRoPE",
              "queries and keys turn by the row and the column of a patch",
              "Heo et al. 2024, Rotary Position Embedding for Vision Transformer, section 3.2")

}  // namespace relpos
