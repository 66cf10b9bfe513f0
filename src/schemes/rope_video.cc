// Yang et al. 2024 (CogVideoX): RoPE of videos, by the frame, the row and the column of a patch.
//
//   the first section[0] pairs turn by the frame, the next by the row, the rest by the column
//   pair p of an axis of n pairs turns by coordinate * base^(-p / n): each axis has a ladder of its own
//
// Patches stand row by row, frame by frame; the first `prefix` tokens belong to no patch and do not turn.
#include "schemes/common/patch_grid.h"
#include "schemes/common/rotary.h"

namespace relpos {

namespace {

struct VideoRoPE {
  common::Rotary rotary;
  std::vector<double> grid;
  std::optional<std::vector<double>> section;
  int64_t prefix = 0;

  void options(OptionList& o) {
    rotary.options(o);
    o.required("grid", grid, "patches on a side of a frame, or [height, width]");
    o.values("section", section,
             "pairs of frame, row and column; None: a third each of row and column, rounded down, "
             "and the rest (Wan). CogVideoX: a quarter, three eighths, three eighths");
    o.size("prefix", prefix, "tokens before the patches, which do not turn", 0);
  }

  void terms(Builder& b) const {
    const common::PatchGrid frame(b, "grid", grid);
    Rotation turn = rotary.rotation(b);
    const int64_t pairs = turn.dims / 2, third = pairs / 3;
    const std::vector<int64_t> of = common::sections(b, section, {pairs - 2 * third, third, third});
    std::vector<double>& frequency = turn.by_position().frequency;
    frequency.clear();
    std::vector<int> axes;
    for (int axis = 0; axis < 3; ++axis) {
      for (const double own : rotary.frequencies(2 * of[static_cast<size_t>(axis)], rotary.base)) {
        frequency.push_back(own);
        axes.push_back(axis);
      }
    }
    b.place([before = prefix](int64_t token) { return token - before; });
    const auto coordinate = [=, before = prefix](int axis, int64_t position) {
      if (before > 0 && position < 0) return int64_t{0};
      const int64_t row = common::quotient(position, frame.width);
      if (axis == 2) return position - row * frame.width;
      const int64_t at = common::quotient(row, frame.height);
      return axis == 0 ? at : row - at * frame.height;
    };
    b.rotation(turn, TurnBy::Coordinates{axes, coordinate});
  }
};

}  // namespace

RELPOS_SCHEME(rope_video, VideoRoPE, "VideoRoPE",
              "queries and keys turn by the frame, the row and the column of a patch",
              "Yang et al. 2024, CogVideoX, section 2.2")

}  // namespace relpos
