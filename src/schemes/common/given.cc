#include "schemes/common/given.h"

#include <cmath>

namespace relpos::common {

Source given_table(Builder& b, bool by_head, int64_t columns, int64_t example) {
  std::vector<int64_t> shape{kAny, columns}, sizes{kExampleRows, example};
  if (by_head) {
    shape.insert(shape.begin(), kAny);
    sizes.insert(sizes.begin(), kHeads);
  }
  return b.input("table", shape, Init::normal(1.0), "the rows", std::move(sizes));
}

void GivenProduct::options(OptionList& o, const char* met) {
  o.flag("by_head", by_head, "each head has a table of its own");
  o.flag("factor", factor, met);
  o.number("scale", scale, "multiplies the products; None: the scale of the scores");
}

std::optional<Source> GivenProduct::given_factor(Builder& b, int64_t heads, int64_t tokens) const {
  if (!factor) return std::nullopt;
  return b.input("factor", {kBatch, heads, tokens, kAny}, Init::normal(1.0), "what meets the rows",
                 {kBatch, kHeads, tokens, example_rank()});
}

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
    made.first = b.integers("first", {1}, {-2}, "the smallest distance of a row");
    return made;
  }
  b.require(!reversed, "reversed: expected false with map=runs, whose classes say the order");
  made.starts = b.integers("starts", {kAny}, {-2, 0, 3},
                           "where the second run of distances starts, and the others");
  made.classes = b.integers("classes", {kAny}, {0, 2, -1, 1}, "the row of each run, -1: none");
  return made;
}

std::optional<Along> GivenRows::coordinates(Builder& b) const {
  if (!along) return std::nullopt;
  const Source q = b.integers("q_along", {kBatch, kQueries}, 20, "a coordinate of each query");
  const Source k = b.integers("k_along", {kBatch, kKeys}, 20, "a coordinate of each key");
  return Along::given(q, k, 0);
}

std::function<int64_t(int64_t)> grid_place(const Builder& b, const std::vector<double>& grid) {
  constexpr double kMost = 1 << 20;
  std::vector<int64_t> sides;
  for (const double side : grid) {
    b.require(side >= 1 && side <= kMost && side == std::floor(side),
              "grid: expected whole numbers of 1 to 2^20, got ", side);
    sides.push_back(static_cast<int64_t>(side));
  }
  b.require(!sides.empty() && sides.size() <= 3, "grid: expected one to three sides, got ",
            sides.size());
  return [sides](int64_t token) {
    int64_t place = 0, stride = 1;
    for (size_t axis = sides.size(); axis-- > 0;) {
      const int64_t side = sides[axis];
      const int64_t at = axis == 0 ? token : (token % side + side) % side;
      token = (token - at) / side;
      place += at * stride;
      stride *= 2 * side - 1;
    }
    return place;
  };
}

}  // namespace relpos::common
