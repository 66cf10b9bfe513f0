// Dai et al. 2020 (Funnel-Transformer): XLNet's attention, in which [CLS] meets no distance and segment.
//
//   score[h,i,j] = scale (<q_i + r_w_bias, k_j> + <q_i + r_r_bias, R(n) r_kernel>
//                         + <q_i + r_s_bias, seg_embed[s]>)
//   n = pos_q - pos_k,   s = 1 in one segment, else 0; [CLS], of segment 2, has the first term alone
//   R(n) = [sin(n f_0), sin(n f_1), ..., cos(n f_0), cos(n f_1), ...],   f_p = 10000^(-2 p / width)
//
// Token 0 is [CLS]. It stands farther than max_length from the others, as a query on the other side than as
// a key, where what is before it stands in its order. Pooled queries stand at the positions of the tokens that they begin with.
#include <algorithm>
#include <cstdlib>

#include "schemes/common/frequencies.h"
#include "schemes/common/projection_sizes.h"
#include "schemes/common/sinusoids.h"

namespace relpos {

namespace {

struct Funnel {
  common::ProjectionSizes sizes;
  int64_t max_length = 512;
  bool separate_cls = true;
  static constexpr int64_t kCls = 2, kSegments = 16;

  void options(OptionList& o) {
    sizes.options(o);
    o.keyword_only();
    o.size("max_length", max_length, "distances between tokens are below it");
    o.flag("separate_cls", separate_cls,
           "[CLS] meets no distance and no segment; else all distances, in every segment");
  }

  void terms(Builder& b) const {
    const int64_t width = sizes.width(b);
    b.require(max_length <= kLargestHeads, "max_length: expected up to ", kLargestHeads, ", got ",
              max_length);
    const auto added = [&](const char* name, const char* doc) {
      return b.parameter(name, {sizes.heads, sizes.head_dim}, Init::uniform(0.0, 0.1), doc);
    };
    const Source w = added("r_w_bias", "joins the queries where they meet keys");
    const Source of_distances = added("r_r_bias", "joins the queries where they meet distances");
    const Source r =
        b.parameter("r_kernel", {width, sizes.heads, sizes.head_dim}, Init::uniform(0.0, 0.1),
                    "projects the sinusoids of a distance to each head");
    const Source of_segments = added("r_s_bias", "joins the queries where they meet segments");
    const Source rows =
        b.parameter("seg_embed", {2, sizes.heads, sizes.head_dim}, Init::uniform(0.0, 0.1),
                    "rows of another segment and of the same");
    const Source q = b.integers("q_segments", {kBatch, kQueries}, 1, "of each query; [CLS]: 2");
    const Source k = b.integers("k_segments", {kBatch, kKeys}, 1, "of each key; [CLS]: 2");
    b.query_added(w);
    const auto waves = common::sinusoids(common::rotary_frequencies(width, 10000.0));
    b.projected_rows(
        sizes.heads, r.rolled(),
        [=, apart = separate_cls, most = max_length](int64_t first, int64_t count,
                                                     double* features) {
          waves(first, count, features);
          for (int64_t m = 0; apart && m < count; ++m) {
            if (std::abs(first + m) >= most) std::fill_n(features + m * width, width, 0.0);
          }
        },
        of_distances);
    // [CLS] as a query stands below the other segments, as a key above.
    const auto at = [who = std::string(b.scheme())](int64_t of_cls) {
      return [=](int64_t segment, int64_t) {
        check_value(segment >= 0 && segment < kSegments, who, ": segments: expected 0 to ",
                    kSegments - 1, ", got ", segment);
        return segment == kCls ? of_cls : segment;
      };
    };
    const int64_t of_cls = separate_cls ? ClassMap::kNone : 1;
    b.rows(
        ClassMap::thresholds({1 - kSegments, 0, 1, kSegments}, {of_cls, 0, 1, 0, of_cls}),
        rows.rolled().transposed(),
        {.added = of_segments, .along = Along::read(q, k, at(-2 * kSegments), at(2 * kSegments))});
    if (!separate_cls) return;
    b.place([far = 2 * max_length](int64_t token) { return token == 0 ? far : token; },
            [far = -max_length](int64_t token) { return token <= 0 ? far + token : token; });
  }
};

}  // namespace

RELPOS_SCHEME(funnel, Funnel, "Funnel", "XLNet's sinusoids and segments, which [CLS] does not meet",
              "Dai et al. 2020, Funnel-Transformer, appendix A.2")

}  // namespace relpos
