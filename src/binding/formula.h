// A table of numbers by a formula of the distance, and the gradients of the formula's numbers.
#pragma once

#include <string>
#include <vector>

#include "binding/recipe.h"
#include "binding/source.h"
#include "relpos/scheme.h"

namespace relpos {

class FormulaTable {
 public:
  // `numbers` are one for each head; `scheme` is for errors.
  FormulaTable(std::string scheme, DistanceFormula formula, int64_t heads,
               const std::vector<Source>& numbers);

  DistanceBias bias(const PartCall& call) const;  // [heads, distances], in double
  // `gradient` is of the bias's table.
  void pull_back(const PartCall& call, const std::vector<double>& gradient,
                 ParameterSums& sums) const;

 private:
  bool wanted(const PartCall& call) const;
  // What the formula takes for each distance of a call.
  std::vector<double> arguments(const PartCall& call, int64_t count) const;
  std::vector<double> by_head(const PartCall& call) const;  // [heads, numbers of a head]

  std::string scheme_;
  DistanceFormula formula_;
  int64_t heads_;
  std::vector<SourceReader> numbers_;
};

}  // namespace relpos
