// Rotations by cosines and sines that the caller gives, as a model's own code has computed them.
//
//   pair p of query i: (x, y) -> (x q_cos[b, i, p] - y q_sin[b, i, p], y q_cos[b, i, p] + x q_sin[b, i, p]),
//   keys alike by k_cos and k_sin
//
// Scores follow a shift of all tokens only if the tables do. All heads turn alike, unless the tables
// have an axis of key heads behind the batch: [b, h, i, p]. A query turns as the key head of its group.
#include "schemes/common/rotary.h"

namespace relpos {

namespace {

struct RotaryTables {
  common::Rotary rotary;
  std::optional<int64_t> kv_heads;

  void options(OptionList& o) {
    o.required("head_dim", rotary.head_dim, "size of a query and key head");
    o.keyword_only();
    o.required("layout", rotary.layout, {"interleaved", "half"},
               "pairs (2p, 2p + 1), or (p, p + rotary_dim / 2) as in Hugging Face");
    o.size("rotary_dim", rotary.rotary_dim,
           "how many dimensions of the head turn; None: all from start on", 2);
    o.size("start", rotary.start, "the first dimension that turns", 0);
    o.size("kv_heads", kv_heads,
           "key heads, which the tables have an axis of behind the batch; 1: all heads turn alike; "
           "None: they do, and the tables have no such axis");
  }

  void terms(Builder& b) const {
    const Rotation turn = rotary.rotation(b);
    const int64_t pairs = turn.dims / 2;
    if (kv_heads.value_or(1) > 1) b.kv_heads(*kv_heads, "kv_heads");
    const auto table = [&](const char* name, int64_t length, const char* doc) {
      std::vector<int64_t> shape{kBatch, length, pairs};
      if (kv_heads) shape.insert(shape.begin() + 1, *kv_heads);
      return b.input(name, shape, Init::uniform(-1, 1), doc);
    };
    const Source q_cos = table("q_cos", kQueries, "cosine of each query and pair"),
                 q_sin = table("q_sin", kQueries, "sine of each query and pair"),
                 k_cos = table("k_cos", kKeys, "cosine of each key and pair"),
                 k_sin = table("k_sin", kKeys, "sine of each key and pair");
    b.rotation(turn, TurnBy::Tables{q_cos, q_sin, k_cos, k_sin});
  }
};

}  // namespace

RELPOS_SCHEME(rotary_tables, RotaryTables, "RotaryTables",
              "queries and keys turn by cosines and sines that are given with the call",
              "Su et al. 2021, RoFormer, section 3.2, with any angles")

}  // namespace relpos
