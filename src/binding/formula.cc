#include "binding/formula.h"

#include <algorithm>

#include "base/zeros.h"
#include "binding/by_distance.h"

namespace relpos {

FormulaTable::FormulaTable(std::string scheme, DistanceFormula formula, int64_t heads,
                           const std::vector<Source>& numbers)
    : scheme_(std::move(scheme)), formula_(std::move(formula)), heads_(heads) {
  for (const Source& source : numbers) numbers_.emplace_back(source);
}

DistanceBias FormulaTable::bias(const PartCall& call) const {
  const int64_t first = call.sizes.first_distance;
  const int64_t count = distance_count(call.sizes, heads_, scheme_);
  const std::vector<double> numbers = by_head(call), at = arguments(call, count);
  std::vector<double> table = zeros(heads_ * count);
  constexpr int64_t kPiece = 1024;
  const int64_t pieces = (heads_ * count + kPiece - 1) / kPiece;
  in_parallel(call.sizes.threads, pieces, [&](int64_t piece) {
    const int64_t end = std::min((piece + 1) * kPiece, heads_ * count);
    CancelTicks tick;
    for (int64_t n = piece * kPiece; n < end; ++n) {
      tick(std::ssize(numbers_));
      const double* own = numbers.data() + static_cast<size_t>(n / count) * numbers_.size();
      table[static_cast<size_t>(n)] = formula_.value(at[static_cast<size_t>(n % count)], own);
    }
  });
  DistanceBias bias;
  bias.map = ClassMap::clamp(first, first + count - 1);
  bias.table = TermData::computed(std::move(table), {heads_, count}, wanted(call));
  return bias;
}

void FormulaTable::pull_back(const PartCall& call, const std::vector<double>& gradient,
                             ParameterSums& sums) const {
  if (!wanted(call)) return;
  const int64_t count = distance_count(call.sizes, heads_, scheme_);
  const std::vector<double> numbers = by_head(call), inputs = arguments(call, count);
  std::vector<double> found(numbers.size(), 0.0);
  in_parallel(call.sizes.threads, heads_, [&](int64_t h) {
    const size_t at = static_cast<size_t>(h) * numbers_.size();
    CancelTicks tick;
    for (int64_t m = 0; m < count; ++m) {
      tick(std::ssize(numbers_));
      const double upstream = gradient[static_cast<size_t>(h * count + m)];
      if (upstream == 0.0) continue;
      formula_.add_gradients(inputs[static_cast<size_t>(m)], numbers.data() + at, upstream,
                             found.data() + at);
    }
  });
  for (size_t n = 0; n < numbers_.size(); ++n) {
    check_cancelled();
    std::vector<double> own;
    for (size_t at = n; at < found.size(); at += numbers_.size()) own.push_back(found[at]);
    numbers_[n].add_gradient_of_numbers(call, std::move(own), sums);
  }
}

std::vector<double> FormulaTable::arguments(const PartCall& call, int64_t count) const {
  std::vector<double> found = zeros(count);
  const int64_t first = call.sizes.first_distance;
  constexpr int64_t kPiece = 1024, kSharedSteps = 1024;  // of a sum of waves, say
  in_parallel(call.sizes.threads, (count + kPiece - 1) / kPiece, [&](int64_t piece) {
    CancelTicks tick;
    for (int64_t m = piece * kPiece; m < std::min((piece + 1) * kPiece, count); ++m) {
      tick(formula_.shared ? kSharedSteps : 1);
      const int64_t delta = first + m;
      found[static_cast<size_t>(m)] =
          formula_.shared ? formula_.shared(delta) : static_cast<double>(delta);
    }
  });
  return found;
}

bool FormulaTable::wanted(const PartCall& call) const {
  return std::any_of(numbers_.begin(), numbers_.end(),
                     [&](const SourceReader& number) { return number.wanted(call); });
}

std::vector<double> FormulaTable::by_head(const PartCall& call) const {
  std::vector<double> all(static_cast<size_t>(heads_) * numbers_.size());
  for (size_t n = 0; n < numbers_.size(); ++n) {
    check_cancelled();
    const std::vector<double> one = numbers_[n].numbers(call);
    for (size_t h = 0; h < one.size(); ++h) all[h * numbers_.size() + n] = one[h];
  }
  return all;
}

}  // namespace relpos
