#include "binding/source.h"

#include <algorithm>
#include <cmath>

#include "base/parallel.h"
#include "base/strided.h"
#include "values/views.h"

namespace relpos {

Source Source::transposed() const {
  Source turned = *this;
  check_value(axes_.size() >= 2, "transposed: expected two axes or more, got ", axes_.size());
  std::swap(turned.axes_[axes_.size() - 2], turned.axes_[axes_.size() - 1]);
  return turned;
}

Source Source::rolled() const {
  Source turned = *this;
  check_value(!axes_.empty(), "rolled: expected an axis, got a number");
  std::rotate(turned.axes_.begin(), turned.axes_.begin() + 1, turned.axes_.end());
  return turned;
}

Source Source::operator[](int64_t index) const {
  Source entry = *this;
  check_value(!axes_.empty(), "[]: expected an axis, got a number");
  entry.chosen_.emplace_back(axes_.front(), index);
  entry.axes_.erase(entry.axes_.begin());
  return entry;
}

Source Source::at_least(double least) const {
  Source bounded = *this;
  bounded.least_ = least;
  return bounded;
}

Source Source::at_most(double most) const {
  Source bounded = *this;
  bounded.most_ = most;
  return bounded;
}

Source Source::cumulative() const {
  Source sums = *this;
  sums.cumulative_ = true;
  return sums;
}

Source Source::column() const {
  Source columns = *this;
  columns.axes_.push_back(-1);
  return columns;
}

TensorView SourceReader::view_of(const TensorView& whole, int64_t& offset) const {
  TensorView view = whole;
  view.rank = 0;
  offset = 0;
  for (const auto& [axis, entry] : source_->chosen_) {
    offset += entry * whole.strides[static_cast<size_t>(axis)];
  }
  for (const int axis : source_->axes_) {
    const auto to = static_cast<size_t>(view.rank++), from = static_cast<size_t>(axis);
    view.shape[to] = axis < 0 ? 1 : whole.shape[from];
    view.strides[to] = axis < 0 ? 1 : whole.strides[from];
  }
  if (view.data != nullptr) {
    view.data = static_cast<char*>(view.data) + offset * item_size(view.dtype);
  }
  return view;
}

bool SourceReader::plain() const {
  return !source_->cumulative_ && !std::isfinite(source_->least_) && !std::isfinite(source_->most_);
}

std::vector<double> SourceReader::computed(const PartCall& call, TensorView& view) const {
  int64_t offset = 0;
  view = view_of(call.parameters[source_->index_], offset);
  std::vector<double> values(static_cast<size_t>(view.numel()));
  double* to = values.data();
  CancelTicks tick;
  for_each_row(view, [&](int64_t at, int64_t count, int64_t stride) {
    tick(count);
    load_run(view, at, count, stride, to);
    for (double* end = to + count; to < end; ++to) {
      *to = std::min(std::max(*to, source_->least_), source_->most_);
    }
  });
  if (source_->cumulative_) {
    const auto length = static_cast<size_t>(view.shape[static_cast<size_t>(view.rank - 1)]);
    for (size_t n = 0; n < values.size(); ++n) {
      tick();
      if (n % length != 0) values[n] += values[n - 1];
    }
  }
  return values;
}

TermData SourceReader::read(const PartCall& call) const {
  if (!given()) return {};
  if (plain()) {
    int64_t offset = 0;
    TermData data = TermData::parameter(view_of(call.parameters[source_->index_], offset),
                                        wanted(call), source_->multiplier_);
    data.source = &*source_;
    return data;
  }
  TensorView view;
  std::vector<double> values = computed(call, view);
  TermData data = TermData::computed(std::move(values), view.dims(), wanted(call));
  data.multiplier = source_->multiplier_;
  return data;
}

void SourceReader::multiply(std::vector<double>& values) const {
  in_pieces(std::ssize(values), [&](int64_t from, int64_t to) {
    for (int64_t n = from; n < to; ++n) values[static_cast<size_t>(n)] *= source_->multiplier_;
  });
}

std::vector<double> SourceReader::numbers(const PartCall& call) const {
  TensorView view;
  std::vector<double> values = computed(call, view);
  multiply(values);
  return values;
}

void SourceReader::add_gradient(const PartCall& call, const std::vector<double>& gradient,
                                ParameterSums& sums) const {
  if (!wanted(call)) return;
  std::vector<double>& sum = sums[source_->index_];
  int64_t offset = 0;
  const TensorView& parameter = call.parameters[source_->index_];
  const TensorView view = view_of(TensorView(nullptr, DType::kFloat64, parameter.dims()), offset);
  std::vector<double> of_elements;
  CancelTicks tick;
  if (source_->cumulative_) {
    of_elements.reserve(gradient.size());
    for (const double value : gradient) {
      tick();
      of_elements.push_back(value);
    }
    const auto length = static_cast<size_t>(view.shape[static_cast<size_t>(view.rank - 1)]);
    for (size_t n = gradient.size(); n-- > 0;) {
      tick();
      if ((n + 1) % length != 0) of_elements[n] += of_elements[n + 1];
    }
  }
  const double* from = (source_->cumulative_ ? of_elements : gradient).data();
  for_each_row(view, [&](int64_t at, int64_t count, int64_t stride) {
    tick(count);
    double* to = sum.data() + offset + at;
    for (int64_t n = 0; n < count; ++n) to[n * stride] += from[n];
    from += count;
  });
}

void SourceReader::add_gradient_of_numbers(const PartCall& call, std::vector<double> gradient,
                                           ParameterSums& sums) const {
  if (!wanted(call)) return;
  multiply(gradient);
  add_gradient(call, gradient, sums);
}

}  // namespace relpos
