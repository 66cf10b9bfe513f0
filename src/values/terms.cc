#include "relpos/terms.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "base/parallel.h"
#include "base/zeros.h"
#include "relpos/error.h"
#include "values/term_kinds.h"

namespace relpos {
namespace {

// hi - lo + 1.
int64_t row_count(int64_t lo, int64_t hi, const char* map) {
  int64_t rows = 0;
  check_value(lo <= hi, map, ": expected lo <= hi, got ", lo, " and ", hi);
  check_value(!__builtin_sub_overflow(hi, lo, &rows) && !__builtin_add_overflow(rows, 1, &rows),
              map, ": more than 2^63 - 1 rows between ", lo, " and ", hi);
  return rows;
}

template <typename T>
void extend(std::vector<T>& to, std::vector<T>& from) {
  if (to.empty()) return to.swap(from);
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

}  // namespace

ClassMap ClassMap::clamp(int64_t lo, int64_t hi, bool reversed) {
  ClassMap map;
  map.classes_ = row_count(lo, hi, "clamp");
  map.lo_ = lo;
  map.hi_ = hi;
  map.reversed_ = reversed;
  return map;
}

ClassMap ClassMap::zero_outside(int64_t lo, int64_t hi, bool reversed) {
  ClassMap map;
  map.classes_ = row_count(lo, hi, "zero_outside");
  map.lo_ = lo;
  map.hi_ = hi;
  map.reversed_ = reversed;
  map.outside_is_none_ = true;
  return map;
}

ClassMap ClassMap::thresholds(std::vector<int64_t> starts, std::vector<int64_t> classes) {
  check_value(classes.size() == starts.size() + 1, "thresholds: expected ", starts.size() + 1,
              " classes for ", starts.size(), " starts, got ", classes.size());
  check_value(std::is_sorted(starts.begin(), starts.end()), "thresholds: starts must not decrease");
  const auto [least, largest] = std::minmax_element(classes.begin(), classes.end());
  check_value(*least >= kNone, "thresholds: expected classes of 0 or more, or -1 for none, got ",
              *least);
  check_value(*largest < std::numeric_limits<int64_t>::max(),
              "thresholds: expected classes below 2^63 - 1, got ", *largest);
  ClassMap map;
  map.classes_ = *largest + 1;
  if (!starts.empty()) {
    map.lo_ = std::max(starts.front(), std::numeric_limits<int64_t>::min() + 1) - 1;
    map.hi_ = starts.back();
  }
  map.starts_ = std::move(starts);
  map.run_classes_ = std::move(classes);
  return map;
}

int64_t ClassMap::operator()(int64_t delta) const noexcept {
  if (!run_classes_.empty()) {
    const auto run = std::upper_bound(starts_.begin(), starts_.end(), delta) - starts_.begin();
    return run_classes_[static_cast<size_t>(run)];
  }
  if (outside_is_none_ && (delta < lo_ || delta > hi_)) return kNone;
  const int64_t inside = std::clamp(delta, lo_, hi_);
  return reversed_ ? hi_ - inside : inside - lo_;
}

std::pair<std::vector<int64_t>, std::vector<int64_t>> ClassMap::runs() const {
  if (!run_classes_.empty()) return {starts_, run_classes_};
  std::vector<int64_t> starts, classes;
  if (outside_is_none_) {
    starts.push_back(lo_);
    classes.push_back(kNone);
  }
  CancelTicks tick;
  for (int64_t row = 0; row < classes_; ++row) {
    tick();
    if (row > 0) starts.push_back(lo_ + row);
    classes.push_back((*this)(lo_ + row));
  }
  if (outside_is_none_) {
    starts.push_back(hi_ + 1);
    classes.push_back(kNone);
  }
  return {std::move(starts), std::move(classes)};
}

TermData TermData::parameter(const TensorView& view, bool wants_gradient, double multiplier) {
  check_value(view.given(), "parameter: expected a tensor, got nothing");
  check_value(std::isfinite(multiplier), "parameter: expected a finite multiplier, got ",
              multiplier);
  TermData data;
  data.view = view;
  data.multiplier = multiplier;
  data.wants_gradient = wants_gradient;
  return data;
}

TermData TermData::computed(std::vector<double> values, const std::vector<int64_t>& shape,
                            bool wants_gradient) {
  const int64_t count = checked_numel(shape, "computed");
  check_value(static_cast<int64_t>(values.size()) == count, "computed: expected ", count,
              " values, got ", values.size());
  TermData data;
  const auto owned = std::make_shared<std::vector<double>>(std::move(values));
  data.view = TensorView(owned->data(), DType::kFloat64, shape);
  data.owned = owned;
  data.wants_gradient = wants_gradient;
  return data;
}

void Terms::append(Terms other) {
  for_each_kind([&](const char*, auto list, auto) { extend(this->*list, other.*list); });
}

TermGradients TermGradients::like(const Terms& terms) {
  TermGradients empty;
  for_each_kind(
      [&](const char*, auto list, auto sums) { (empty.*sums).resize((terms.*list).size()); });
  return empty;
}

TermGradients TermGradients::zeros(const Terms& terms) {
  TermGradients zeros = like(terms);
  for_each_number(terms, zeros,
                  [](const char*, const TermData& data, std::vector<double>& gradient, HeadAxis) {
                    if (data.wants_gradient) gradient = relpos::zeros(data.view.numel());
                  });
  return zeros;
}

}  // namespace relpos
