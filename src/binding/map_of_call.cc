#include "binding/map_of_call.h"

#include <algorithm>
#include <vector>

#include "base/parallel.h"
#include "binding/source.h"

namespace relpos {
namespace {

// Nothing of a view without memory, of which only sizes matter.
std::vector<int64_t> integers(const std::optional<Source>& source, const PartCall& call) {
  const TensorView view = SourceReader(source).read(call).view;
  std::vector<int64_t> numbers;
  if (view.data == nullptr || view.dtype != DType::kInt64) return numbers;
  CancelTicks tick;
  for (int64_t n = 0; n < view.shape[0]; ++n) {
    tick();
    numbers.push_back(view.load_int(n * view.strides[0]));
  }
  return numbers;
}

ClassMap given(const GivenMap& map, const PartCall& call, int64_t rows) {
  const int64_t last_row = std::max<int64_t>(rows - 1, 0);
  if (map.kind == GivenMap::Kind::kRuns) {
    std::vector<int64_t> classes = integers(map.classes, call);
    if (classes.empty()) return ClassMap::clamp(0, last_row);
    std::vector<int64_t> starts = integers(map.starts, call);
    check_value(classes.size() == starts.size() + 1, "classes: expected ", starts.size() + 1,
                ", one more than starts, got ", classes.size());
    return ClassMap::thresholds(std::move(starts), std::move(classes));
  }
  const std::vector<int64_t> found = integers(map.first, call);
  const int64_t first = found.empty() ? 0 : found[0];
  check_value(first > -kLargestSize && first < kLargestSize && rows < kLargestSize,
              "first: expected a distance below 2^48 on both sides of 0, got ", first);
  return map.kind == GivenMap::Kind::kClamp
             ? ClassMap::clamp(first, first + last_row, map.reversed)
             : ClassMap::zero_outside(first, first + last_row, map.reversed);
}

}  // namespace

ClassMap MapOfCall::map(const PartCall& call, int64_t rows) const {
  if (const auto* decided = std::get_if<ClassMap>(&map_)) return *decided;
  return given(std::get<GivenMap>(map_), call, rows);
}

}  // namespace relpos
