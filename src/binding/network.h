// Tables of numbers that a network computes, and the gradients of its numbers.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "binding/recipe.h"
#include "binding/source.h"
#include "relpos/scheme.h"

namespace relpos {

// Linear maps with an activation after each but the last.
class Layers {
 public:
  struct Numbers {
    std::vector<double> weight, bias;  // [out, in], [out]
  };
  // The inputs of each layer, and its sums before the activation.
  struct State {
    std::vector<std::vector<double>> inputs, sums;
  };
  using Activation = Network::Activation;

  // Layer n maps widths[n] numbers to widths[n + 1].
  Layers(Activation activation, std::vector<int64_t> widths)
      : activation_(activation), widths_(std::move(widths)) {}
  // Without a bias the layer has zeros.
  void add(const Source& weight, const std::optional<Source>& bias);

  const std::vector<int64_t>& widths() const noexcept { return widths_; }
  bool wanted(const PartCall& call) const;
  std::vector<Numbers> numbers(const PartCall& call) const;
  std::vector<Numbers> no_gradients() const;
  State run(const std::vector<Numbers>& numbers, std::vector<double> input,
            CancelTicks& tick) const;
  // Adds the gradients of one run, of `upstream` of its results; returns that of its input.
  std::vector<double> add_gradients(const std::vector<Numbers>& numbers, const State& state,
                                    std::vector<double> upstream, std::vector<Numbers>& found,
                                    CancelTicks& tick) const;
  void write(const PartCall& call, std::vector<Numbers> found, ParameterSums& sums) const;

 private:
  double activated(double x) const;
  double slope(double x) const;

  Activation activation_;
  std::vector<int64_t> widths_;
  std::vector<std::pair<SourceReader, SourceReader>> readers_;  // weight, bias
};

// b[h, delta] of a network of one feature of the distance.
class NetworkTable {
 public:
  // `widths`: 1, then the results of each layer, the last one number a head.
  NetworkTable(std::string scheme, Network network, std::vector<int64_t> widths);

  DistanceBias bias(const PartCall& call) const;
  // `gradient` [heads, distances].
  void pull_back(const PartCall& call, const std::vector<double>& gradient,
                 ParameterSums& sums) const;

 private:
  bool wanted(const PartCall& call) const;
  std::vector<double> feature_numbers(const PartCall& call) const;

  std::string scheme_;
  Network network_;
  Layers layers_;
  std::vector<SourceReader> feature_numbers_;
};

// Numbers [heads, entries] of a perceptron of features of the entry.
class PerceptronTable {
 public:
  PerceptronTable(const Perceptron& perceptron, int64_t width, int64_t hidden, int64_t heads,
                  int64_t entries);

  TermData table(const PartCall& call) const;  // in double
  // `gradient` [heads, entries].
  void pull_back(const PartCall& call, const std::vector<double>& gradient,
                 ParameterSums& sums) const;

 private:
  Layers::State run(const std::vector<Layers::Numbers>& numbers, int64_t entry,
                    CancelTicks& tick) const;

  Layers layers_;
  std::function<void(int64_t entry, double* features)> features_;
  double sigmoid_;
  int64_t entries_;
};

}  // namespace relpos
