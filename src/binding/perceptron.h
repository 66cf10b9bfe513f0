// A table of numbers by a two-layer perceptron, and the gradients of its weights.
#pragma once

#include <vector>

#include "base/parallel.h"
#include "binding/recipe.h"
#include "binding/source.h"
#include "relpos/scheme.h"

namespace relpos {

class PerceptronTable {
 public:
  PerceptronTable(const Perceptron& perceptron, int64_t width, int64_t hidden, int64_t heads,
                  int64_t entries);

  bool wanted(const PartCall& call) const;
  TermData table(const PartCall& call) const;  // [heads, entries], in double
  // `gradient` [heads, entries].
  void pull_back(const PartCall& call, const std::vector<double>& gradient,
                 ParameterSums& sums) const;

 private:
  struct Numbers {
    std::vector<double> first_weight, first_bias, second_weight;
  };
  Numbers numbers(const PartCall& call) const;
  // The hidden layer of an entry after its ReLU, and its results before the sigmoid, one a head.
  void run(const Numbers& numbers, int64_t entry, std::vector<double>& features,
           std::vector<double>& hidden, std::vector<double>& results, CancelTicks& tick) const;

  SourceReader first_weight_, first_bias_, second_weight_;
  std::function<void(int64_t entry, double* features)> features_;
  double sigmoid_;
  int64_t width_, hidden_, heads_, entries_;
};

}  // namespace relpos
