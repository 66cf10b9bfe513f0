// Reads a Source of a recipe for a term, and sends the term's gradient back.
#pragma once

#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "binding/recipe.h"
#include "relpos/scheme.h"

namespace relpos {

// How a term reads a parameter: entry n of `chosen` of its axis, and what is left in the order of `axes`,
// in which -1 is an axis of size 1.
struct ReadParameter {
  size_t index = 0;  // among the part's
  std::vector<int> axes;
  std::vector<std::pair<int, int64_t>> chosen;
  double multiplier = 1.0;
  bool cumulative = false, bounded = false;  // sums along the last axis; numbers cut to an interval
};

class SourceReader {
 public:
  static ReadParameter parameter_of(const Source& source) {
    const bool bounded = std::isfinite(source.least_) || std::isfinite(source.most_);
    return {source.index_,      source.axes_,       source.chosen_,
            source.multiplier_, source.cumulative_, bounded};
  }

  explicit SourceReader(std::optional<Source> source) : source_(std::move(source)) {}

  bool given() const noexcept { return source_.has_value(); }
  // Of numbers that are read as they are; else null.
  const Source* source() const noexcept { return given() && plain() ? &*source_ : nullptr; }
  bool wanted(const PartCall& call) const { return given() && call.wants[source_->index_]; }
  // The parameter itself where it is read as it is; else numbers computed from it. Not given: none.
  TermData read(const PartCall& call) const;
  // The elements in order, as read and multiplied; of a given source.
  std::vector<double> numbers(const PartCall& call) const;
  // Nothing where no gradient is wanted. `gradient`: of the numbers before the multiplier, as terms
  // give it (TermGradients).
  void add_gradient(const PartCall& call, const std::vector<double>& gradient,
                    ParameterSums& sums) const;
  // `gradient`: of what numbers() returned.
  void add_gradient_of_numbers(const PartCall& call, std::vector<double> gradient,
                               ParameterSums& sums) const;

 private:
  // `whole` of the parameter's shape as the term sees it; its first element at `offset`.
  TensorView view_of(const TensorView& whole, int64_t& offset) const;
  bool plain() const;
  void multiply(std::vector<double>& values) const;
  std::vector<double> computed(const PartCall& call, TensorView& view) const;

  std::optional<Source> source_;
};

}  // namespace relpos
