// Tables of numbers that a network computes, and the gradients of its numbers.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "binding/recipe.h"
#include "binding/source.h"
#include "relpos/scheme.h"

namespace relpos {

// Linear maps with an activation after each but the last, of the numbers of each entry of a table.
class Layers {
 public:
  using Activation = Network::Activation;
  // Writes the widths[0] numbers of an entry.
  using Inputs = std::function<void(int64_t entry, double* numbers)>;
  // Adds to `found` what the gradient of the numbers of an entry gives.
  using InputGradients = std::function<void(int64_t entry, const double* gradient, double* found)>;

  // Layer n maps widths[n] numbers to widths[n + 1]. `sigmoid`: where it is not 0, a result is this times
  // the sigmoid of what the last layer gives.
  Layers(Activation activation, std::vector<int64_t> widths, double sigmoid = 0.0)
      : activation_(activation), widths_(std::move(widths)), sigmoid_(sigmoid) {}
  // Without a bias the layer has zeros.
  void add(const Source& weight, const std::optional<Source>& bias);

  const std::vector<int64_t>& widths() const noexcept { return widths_; }
  bool wanted(const PartCall& call) const;
  // The results [heads, entries].
  std::vector<double> results(const PartCall& call, int64_t entries, const Inputs& inputs) const;
  // `gradient` [heads, entries] of the results. Returns the `count` sums of `input_gradients`, if any.
  std::vector<double> pull_back(const PartCall& call, const std::vector<double>& gradient,
                                const Inputs& inputs, ParameterSums& sums, int64_t count = 0,
                                const InputGradients& input_gradients = {}) const;

 private:
  // A layer's numbers as the products read them, rows padded by zeros to kLanes.
  struct Weights {
    Buffer<double> forward, backward, bias;  // [in, out], [out, in], [out]
  };
  // Sums of a layer's gradients, padded likewise.
  struct Gradients {
    Buffer<double> weight, bias;  // [out, in], [out]
  };
  struct Block;

  int64_t at_a_time() const;
  std::vector<Weights> weights(const PartCall& call) const;
  std::vector<Gradients> no_gradients() const;
  void run(const std::vector<Weights>& weights, Block& block) const;
  void add_gradients(const std::vector<Weights>& weights, Block& block,
                     std::vector<Gradients>& found) const;
  void activate(int64_t n, const double* sums, double* to) const;
  void multiply_slopes(int64_t n, const double* sums, double* gradient, double* scratch) const;

  Activation activation_;
  std::vector<int64_t> widths_;
  double sigmoid_;
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
  Layers::Inputs feature(const PartCall& call, const std::vector<double>& numbers) const;

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
  Layers layers_;
  Layers::Inputs features_;
  int64_t entries_;
};

}  // namespace relpos
