#include "schemes/common/given.h"

namespace relpos::common {
namespace {

constexpr int64_t kExampleRuns = 4;

}  // namespace

void GivenRows::options(OptionList& o) {
  o.choice("map", map, {"clamp", "window", "runs"},
           "the rows of other distances than the table's: the nearest (clamp) or none (window); or "
           "sorted runs of distances, each with a row");
  o.flag("reversed", reversed, "row 0 is the largest distance; not with runs");
}

void GivenRows::along_option(OptionList& o) {
  o.flag("along", along, "distances are those of coordinates that are given with the call");
}

GivenMap GivenRows::given(Builder& b) const {
  GivenMap made;
  made.reversed = reversed;
  made.kind = map == "clamp"    ? GivenMap::Kind::kClamp
              : map == "window" ? GivenMap::Kind::kWindow
                                : GivenMap::Kind::kRuns;
  if (made.kind != GivenMap::Kind::kRuns) {
    made.first = b.integers("first", {1}, Init::constant(-2), "the smallest distance of a row");
    return made;
  }
  b.require(!reversed, "reversed: expected false with map=runs, whose classes say the order");
  made.starts = b.integers("starts", {any_size(kExampleRuns - 1)}, Init::each({-2, 0, 3}),
                           "where the second run of distances starts, and the others");
  made.classes = b.integers("classes", {any_size(kExampleRuns)}, Init::each({0, 2, -1, 1}),
                            "the row of each run, -1: none");
  return made;
}

std::optional<Along> GivenRows::coordinates(Builder& b) const {
  if (!along) return std::nullopt;
  const Source q = b.integers("q_along", {kBatch, kQueries}, 20, "a coordinate of each query");
  const Source k = b.integers("k_along", {kBatch, kKeys}, 20, "a coordinate of each key");
  return Along::given(q, k, 0);
}

}  // namespace relpos::common
