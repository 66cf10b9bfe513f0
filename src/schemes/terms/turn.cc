// R by the position times frequencies that are given with the call, [pairs] of all heads or of each.
#include "relpos/scheme.h"

namespace relpos {

namespace {

struct GivenRotation {
  int64_t dims = 0, start = 0;
  std::string layout;
  double magnitude = 1.0;

  void options(OptionList& o) {
    o.required("dims", dims, "how many dimensions of the head turn", 2);
    o.keyword_only();
    o.required("layout", layout, {"interleaved", "half"},
               "pairs (2p, 2p + 1), or (p, p + dims / 2)");
    o.size("start", start, "the first dimension that turns", 0);
    o.number("magnitude", magnitude, "multiplies cosines and sines of queries and of keys");
  }

  void terms(Builder& b) const {
    b.require(dims % 2 == 0, "dims: expected an even number, got ", dims);
    const Source frequency =
        b.input("frequency", {1, kAny, dims / 2}, Init::uniform(0, 1),
                "the angle of a pair at position 1, in radians, of each key head or of all",
                {1, 1, dims / 2});
    Rotation turn;
    turn.start = start;
    turn.dims = dims;
    turn.layout = layout == "half" ? PairLayout::kHalf : PairLayout::kInterleaved;
    turn.magnitude = magnitude;
    b.rotation(turn,
               TurnBy::HeadFrequencies{frequency, [](int, int64_t position) { return position; }});
  }
};

}  // namespace

RELPOS_SCHEME(turn, GivenRotation, "Rotation", "pairs turn by the position times given frequencies",
              "terms.h, Rotation")

}  // namespace relpos
