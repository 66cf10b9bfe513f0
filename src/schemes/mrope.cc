// Wang et al. 2024 (Qwen2-VL, M-RoPE): tokens stand in time, height and width, and each pair turns by
// one of the three.
//
//   pair p turns by coordinate[axis_p] * base^(-2 p / rotary_dim), one ladder for all three axes
//   axis: section[0] pairs of time, then section[1] of height, then section[2] of width; interleaved,
//   as in Qwen3-VL: p mod 3 for p < 3 section[p mod 3], else time
//
// Coordinates are given with each call. Boundaries (causal, window) go by positions as ever.
#include "schemes/common/rotary.h"

namespace relpos {

namespace {

struct MRoPE {
  common::Rotary rotary;
  std::optional<std::vector<double>> section;
  bool interleaved = false;

  void options(OptionList& o) {
    rotary.options(o);
    o.values("section", section,
             "pairs of time, height and width; None: a quarter, three eighths, and the rest");
    o.flag("interleaved", interleaved, "the axes take turns from pair to pair");
  }

  void terms(Builder& b) const {
    const Rotation turn = rotary.rotation(b);
    const int64_t pairs = turn.dims / 2;
    const std::vector<int64_t> of =
        common::sections(b, section, {pairs / 4, 3 * pairs / 8, pairs - pairs / 4 - 3 * pairs / 8});
    std::vector<int> axes;
    for (int64_t p = 0; p < pairs; ++p) {
      const auto turns = static_cast<size_t>(p % 3);
      if (interleaved) {
        axes.push_back(turns > 0 && p < 3 * of[turns] ? static_cast<int>(turns) : 0);
      } else {
        axes.push_back(p < of[0] ? 0 : p < of[0] + of[1] ? 1 : 2);
      }
    }
    constexpr int64_t kExample = 31;
    const Source q = b.integers("q_coordinates", {kBatch, 3, kQueries}, kExample,
                                "time, height and width of each query");
    const Source k = b.integers("k_coordinates", {kBatch, 3, kKeys}, kExample,
                                "time, height and width of each key");
    b.rotation(turn, TurnBy::GivenCoordinates{axes, q, k});
  }
};

}  // namespace

RELPOS_SCHEME(mrope, MRoPE, "MRoPE",
              "queries and keys turn by time, height and width, each pair by one of them",
              "Wang et al. 2024, Qwen2-VL, section 2.1")

}  // namespace relpos
