// Yang et al. 2019 (XLNet): Transformer-XL's sinusoids of the distance, and a row for tokens of one
// segment and one for tokens of two.
//
//   score[h,i,j] = scale (<q_i + r_w_bias, k_j> + <q_i + r_r_bias, R(n) r>
//                         + <q_i + r_s_bias, seg_embed[s]>)
//   n = pos_q - pos_k,   s = 0 in one segment, else 1
//   R(n) = [sin(n f_0), sin(n f_1), ..., cos(n f_0), cos(n f_1), ...],   f_p = 10000^(-2 p / width)
#include "schemes/common/frequencies.h"
#include "schemes/common/projection_sizes.h"
#include "schemes/common/sinusoids.h"

namespace relpos {

namespace {

struct XLNet {
  common::ProjectionSizes sizes;
  std::optional<int64_t> clamp_len;
  bool segments = true;

  void options(OptionList& o) {
    sizes.options(o);
    o.keyword_only();
    o.size("clamp_len", clamp_len,
           "distances from it on, on either side, count as it; None: no limit");
    o.flag("segments", segments, "the segments of the tokens are given with each call");
  }

  void terms(Builder& b) const {
    const int64_t width = sizes.width(b);
    const auto added = [&](const char* name, const char* doc) {
      return b.parameter(name, {sizes.heads, sizes.head_dim}, Init::normal(0.02), doc);
    };
    const Source r = b.parameter("r", {width, sizes.heads, sizes.head_dim}, Init::normal(0.02),
                                 "projects the sinusoids of a distance to each head");
    const Source w = added("r_w_bias", "joins the queries where they meet keys");
    const Source of_distances = added("r_r_bias", "joins the queries where they meet distances");
    b.query_added(w);
    b.projected_rows(
        sizes.heads, r.rolled(),
        common::sinusoids(common::rotary_frequencies(width, 10000.0), {.farthest = clamp_len}),
        of_distances);
    if (!segments) return;
    const Source s = added("r_s_bias", "joins the queries where they meet segments");
    const Source rows = b.parameter("seg_embed", {2, sizes.heads, sizes.head_dim},
                                    Init::normal(0.02), "rows of the same segment and of another");
    const Source q = b.integers("q_segments", {kBatch, kQueries}, 1, "of each query");
    const Source k = b.integers("k_segments", {kBatch, kKeys}, 1, "of each key");
    b.rows(ClassMap::thresholds({0, 1}, {1, 0, 1}), rows.rolled().transposed(),
           {.added = s, .along = Along::given(q, k, 0)});
  }
};

}  // namespace

RELPOS_SCHEME(xlnet, XLNet, "XLNet",
              "projected sinusoids of the distance, and rows for one segment and for two",
              "Yang et al. 2019, XLNet, section 2.5")

}  // namespace relpos
