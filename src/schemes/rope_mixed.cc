// Heo et al. 2024 (RoPE-Mixed): each pair of each head turns along a direction of the image that is
// learned.
//
//   pair p of key head h turns by freqs[0, h, p] x + freqs[1, h, p] y, x the column and y the row of a
//   patch, and so do the queries of the head's group; indexing "ij": x is the row, y the column
//
// Directions start at right angles, those of each head turned by a random angle, with lengths
// base^(-4 p / d), p < d / 4, d = rotary_dim. Tokens stand row by row; the first `prefix` of them belong
// to no patch and do not turn.
#include "schemes/common/patch_grid.h"
#include "schemes/common/rotary.h"

namespace relpos {

namespace {

struct RoPEMixed {
  int64_t heads = 0, prefix = 0;
  std::optional<int64_t> kv_heads;
  common::Rotary rotary{.layout = "interleaved", .base = 10.0};
  std::vector<double> grid;
  std::string indexing = "xy";

  void options(OptionList& o) {
    o.required("heads", heads, "query heads");
    o.required("head_dim", rotary.head_dim, "size of a query and key head");
    o.required("grid", grid, "patches on a side of the image, or [height, width]");
    o.keyword_only();
    o.size("kv_heads", kv_heads,
           "key heads, which have the frequencies; None: heads; 1: all heads turn alike");
    o.choice("layout", rotary.layout, {"interleaved", "half"},
             "pairs (2p, 2p + 1), as in the paper's code and timm, or (p, p + rotary_dim / 2)");
    o.number("base", rotary.base, "frequencies start with lengths base^(-4p / rotary_dim)");
    o.size("rotary_dim", rotary.rotary_dim,
           "how many dimensions of the head turn; None: all from start on", 4);
    o.size("start", rotary.start, "the first dimension that turns", 0);
    o.choice("indexing", indexing, {"xy", "ij"},
             "freqs[0] is of columns and freqs[1] of rows, or the other way round");
    o.size("prefix", prefix, "tokens before the patches, which do not turn", 0);
  }

  // [2, pairs]: half of them along the first axis, half along the second.
  std::vector<double> directions(int64_t dims) const {
    const std::vector<double> lengths = rotary.frequencies(dims / 2, rotary.base);
    std::vector<double> made(static_cast<size_t>(dims), 0.0);
    for (size_t p = 0; p < lengths.size(); ++p) made[p] = made[p + 3 * lengths.size()] = lengths[p];
    return made;
  }

  void terms(Builder& b) const {
    const common::PatchGrid patches(b, "grid", grid, prefix);
    const Rotation turn = rotary.rotation(b);
    b.require(turn.dims % 4 == 0, "rotary_dim: expected a multiple of 4, got ", turn.dims);
    const int64_t own_heads = kv_heads.value_or(heads);
    b.require(heads % own_heads == 0, "kv_heads: expected a divisor of heads=", heads, ", got ",
              own_heads);
    if (own_heads > 1) b.kv_heads(own_heads, "kv_heads");
    const Source freqs =
        b.parameter("freqs", {2, own_heads, turn.dims / 2}, Init::turned(directions(turn.dims)),
                    "radians a patch, of each key head and pair: those of x, then those of y");
    b.place(patches);
    const auto coordinate = [=, rows = indexing == "ij"](int axis, int64_t position) {
      if (patches.in_prefix(position)) return int64_t{0};
      return (axis == 0) == rows ? patches.row(position) : patches.column(position);
    };
    b.rotation(turn, TurnBy::HeadFrequencies{freqs, coordinate});
  }
};

}  // namespace

RELPOS_SCHEME(rope_mixed, RoPEMixed, "RoPEMixed",
              "each head turns its pairs along learned directions of the image",
              "Heo et al. 2024, Rotary Position Embedding for Vision Transformer, section 3.3")

}  // namespace relpos
