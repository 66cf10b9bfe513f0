#include <cmath>

#include "binding/bound_part.h"
#include "notebooks/common.h"
#include "values/angles.h"

namespace relpos::notebooks {
namespace {

// freqs, freqs twice in the pair layout, cos, sin of `count` positions.
void append_tables(std::vector<Step>& list, const Rotation& rotation, const std::string& suffix,
                   int64_t start, int64_t count) {
  const int64_t pairs = rotation.dims / 2;
  const bool half = rotation.layout == PairLayout::kHalf;
  const auto real = [&](const char* name, int64_t columns, auto cell) {
    list.push_back(matrix(name + suffix, Step::Kind::kReal, count, columns,
                          [&](int64_t i, int64_t c) { return cell(start + i, c); }));
  };
  const auto angle = [&](int64_t position, int64_t pair) {
    return rotation_angle(*rotation.by<Rotation::ByPosition>(), position,
                          static_cast<size_t>(pair));
  };
  const auto twice = [&](int64_t position, int64_t c) {
    return angle(position, half ? c % pairs : c / 2);
  };
  list.push_back(arange("positions" + suffix, start, count));
  real("freqs", pairs, angle);
  real("freqs_twice", 2 * pairs, twice);
  real("cos", 2 * pairs, [&](int64_t position, int64_t c) { return std::cos(twice(position, c)); });
  real("sin", 2 * pairs, [&](int64_t position, int64_t c) { return std::sin(twice(position, c)); });
}

}  // namespace

std::vector<Step> rope(const Part& part, const Grid& grid) {
  const BoundPart bound(part);
  const Rotation& rotation = bound.terms().rotations[0];
  const std::vector<double>& theta = rotation.by<Rotation::ByPosition>()->frequency;
  std::vector<Step> list = {{"theta", Step::Kind::kReal, {std::ssize(theta)}, theta}};
  append_tables(list, rotation, "", 0, grid.keys);
  const bool queries_among_keys = grid.q_offset >= 0 && grid.queries <= grid.keys - grid.q_offset;
  if (!queries_among_keys) append_tables(list, rotation, "_q", grid.q_offset, grid.queries);
  return list;
}

}  // namespace relpos::notebooks
