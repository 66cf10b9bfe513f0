// OpenBMB 2022 (CPM-Ant): T5's bias of the distance within a segment, and a number for each pair of two
// segments.
//
//   score[h,i,j] += relative_attention_bias[bucket(pos_k - pos_q), h]                 in one segment
//                   relative_attention_bias[buckets + segments s_q + s_k, h]          in two
//
// The segments s of the tokens are given with each call.
#include "relpos/scheme.h"
#include "schemes/common/buckets.h"
#include "schemes/common/maps.h"

namespace relpos {

namespace {

struct CPMAntBias {
  int64_t heads = 0, segments = 32, buckets = 512, max_distance = 2048, max_length = 4096;

  static constexpr int64_t kMostLength = int64_t{1} << 16;

  void options(OptionList& o) {
    o.required("heads", heads, "query heads");
    o.size("segments", segments, "kinds of segments, 1024 at most");
    o.size("buckets", buckets, "classes of distances within a segment, an even number");
    o.size("max_distance", max_distance, "all distances from it on share the last bucket");
    o.size("max_length", max_length, "positions are below it; memory grows with it");
  }

  void terms(Builder& b) const {
    b.require(segments <= 1024, "segments: expected up to 1024, got ", segments);
    b.require(max_length <= kMostLength, "max_length: expected up to ", kMostLength, ", got ",
              max_length);
    b.require(max_distance < 2 * max_length,
              "max_distance: expected less than 2 max_length = ", 2 * max_length, ", got ",
              max_distance);
    const Source table =
        b.parameter("relative_attention_bias", {segments * segments + buckets, heads},
                    Init::normal(0.02), "a number for each bucket, then for each pair of segments")
            .transposed();
    const Source q = b.integers("q_segments", {kBatch, kQueries}, segments - 1, "of each query");
    const Source k = b.integers("k_segments", {kBatch, kKeys}, segments - 1, "of each key");
    const auto checked = [kinds = segments, who = std::string(b.scheme())](int64_t segment) {
      check_value(segment >= 0 && segment < kinds, who, ": segments: expected 0 to ", kinds - 1,
                  ", got ", segment);
      return segment;
    };
    // Segments stand so far apart that only tokens of one are within 2 max_length.
    const auto place = [=, most = max_length, who = std::string(b.scheme())](int64_t segment,
                                                                             int64_t position) {
      check_value(position > -most && position < most, who,
                  ": expected positions below max_length=", most, ", got ", position);
      return checked(segment) * 4 * most + position;
    };
    b.ends();
    const common::Buckets within(b.scheme(), buckets, max_distance, true);
    b.bias(within.map(1, 2 * max_length), table, Along::read(q, k, place, place));
    const ClassMap pairs = common::by_distance(
        b, 0, segments * segments - 1, common::Beyond::kNone, [this](int64_t pair) {
          const bool same = pair / segments == pair % segments;
          return same ? ClassMap::kNone : buckets + pair;
        });
    b.bias(
        pairs, table,
        Along::read(
            q, k, [=, by = segments](int64_t segment, int64_t) { return -by * checked(segment); },
            [=](int64_t segment, int64_t) { return checked(segment); }));
  }
};

}  // namespace

RELPOS_SCHEME(cpm_ant, CPMAntBias, "CPMAntBias",
              "learned numbers for distances within a segment and for pairs of segments",
              "OpenBMB 2022, CPM-Ant; Hugging Face CpmAntSegmentPositionEmbedding")

}  // namespace relpos
