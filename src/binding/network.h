// A table of numbers by a network of a feature of the distance, and the gradients of its numbers.
#pragma once

#include <string>
#include <vector>

#include "base/parallel.h"
#include "binding/recipe.h"
#include "binding/source.h"
#include "relpos/scheme.h"

namespace relpos {

class NetworkTable {
 public:
  // `widths`: 1, then what each layer gives, the last one number a head.
  NetworkTable(std::string scheme, Network network, std::vector<int64_t> widths);

  DistanceBias bias(const PartCall& call) const;
  // `gradient` [heads, distances].
  void pull_back(const PartCall& call, const std::vector<double>& gradient,
                 ParameterSums& sums) const;

 private:
  struct Layer {
    std::vector<double> weight, bias;
  };
  struct Numbers {
    std::vector<double> feature;
    std::vector<Layer> layers;
  };
  // What one distance has: what goes into each layer, and before that into its activation.
  struct State {
    std::vector<std::vector<double>> inputs, sums;
  };
  bool wanted(const PartCall& call) const;
  Numbers numbers(const PartCall& call) const;
  Numbers no_gradients() const;
  State run(const Numbers& numbers, double delta, CancelTicks& tick) const;
  double activated(double x) const;
  double slope(double x) const;
  // Adds the gradients of one distance, of `upstream` of each head.
  void add_gradients(const Numbers& numbers, double delta, std::vector<double> upstream,
                     Numbers& found, CancelTicks& tick) const;

  std::string scheme_;
  Network network_;
  std::vector<int64_t> widths_;
  std::vector<SourceReader> feature_numbers_;
  std::vector<std::pair<SourceReader, SourceReader>> layers_;  // weight, bias
};

}  // namespace relpos
