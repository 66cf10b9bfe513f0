#include "binding/perceptron.h"

#include <algorithm>
#include <cmath>

#include "base/parallel.h"
#include "base/zeros.h"

namespace relpos {
namespace {

double logistic(double x) { return 1.0 / (1.0 + std::exp(-x)); }

}  // namespace

PerceptronTable::PerceptronTable(const Perceptron& perceptron, int64_t width, int64_t hidden,
                                 int64_t heads, int64_t entries)
    : first_weight_(perceptron.first_weight),
      first_bias_(perceptron.first_bias),
      second_weight_(perceptron.second_weight),
      features_(perceptron.features),
      sigmoid_(perceptron.sigmoid),
      width_(width),
      hidden_(hidden),
      heads_(heads),
      entries_(entries) {}

bool PerceptronTable::wanted(const PartCall& call) const {
  return first_weight_.wanted(call) || first_bias_.wanted(call) || second_weight_.wanted(call);
}

PerceptronTable::Numbers PerceptronTable::numbers(const PartCall& call) const {
  return {first_weight_.numbers(call), first_bias_.numbers(call), second_weight_.numbers(call)};
}

void PerceptronTable::run(const Numbers& numbers, int64_t entry, std::vector<double>& features,
                          std::vector<double>& hidden, std::vector<double>& results,
                          CancelTicks& tick) const {
  features_(entry, features.data());
  for (size_t n = 0; n < hidden.size(); ++n) {
    tick(width_);
    double sum = numbers.first_bias[n];
    for (size_t w = 0; w < features.size(); ++w) {
      sum += numbers.first_weight[n * features.size() + w] * features[w];
    }
    hidden[n] = std::max(sum, 0.0);
  }
  for (size_t h = 0; h < results.size(); ++h) {
    tick(hidden_);
    results[h] = 0.0;
    for (size_t n = 0; n < hidden.size(); ++n) {
      results[h] += numbers.second_weight[h * hidden.size() + n] * hidden[n];
    }
  }
}

TermData PerceptronTable::table(const PartCall& call) const {
  const Numbers held = numbers(call);
  std::vector<double> features(static_cast<size_t>(width_)), hidden(static_cast<size_t>(hidden_));
  std::vector<double> results(static_cast<size_t>(heads_));
  std::vector<double> table = zeros(heads_ * entries_);
  CancelTicks tick;
  for (int64_t m = 0; m < entries_; ++m) {
    run(held, m, features, hidden, results, tick);
    for (int64_t h = 0; h < heads_; ++h) {
      const double result = results[static_cast<size_t>(h)];
      table[static_cast<size_t>(h * entries_ + m)] =
          sigmoid_ == 0.0 ? result : sigmoid_ * logistic(result);
    }
  }
  return TermData::computed(std::move(table), {heads_, entries_}, wanted(call));
}

void PerceptronTable::pull_back(const PartCall& call, const std::vector<double>& gradient,
                                ParameterSums& sums) const {
  if (!wanted(call)) return;
  const Numbers held = numbers(call);
  const auto width = static_cast<size_t>(width_), layer = static_cast<size_t>(hidden_);
  std::vector<double> features(width), hidden(layer), results(static_cast<size_t>(heads_));
  Numbers found{zeros(hidden_ * width_), zeros(hidden_), zeros(heads_ * hidden_)};
  CancelTicks tick;
  for (int64_t m = 0; m < entries_; ++m) {
    run(held, m, features, hidden, results, tick);
    std::vector<double> upstream(layer, 0.0);  // of the hidden layer
    for (size_t h = 0; h < results.size(); ++h) {
      double own = gradient[h * static_cast<size_t>(entries_) + static_cast<size_t>(m)];
      if (sigmoid_ != 0.0) own *= sigmoid_ * logistic(results[h]) * logistic(-results[h]);
      tick(hidden_);
      for (size_t n = 0; n < layer; ++n) {
        found.second_weight[h * layer + n] += own * hidden[n];
        upstream[n] += own * held.second_weight[h * layer + n];
      }
    }
    for (size_t n = 0; n < layer; ++n) {
      tick(width_);
      if (hidden[n] <= 0.0) continue;
      found.first_bias[n] += upstream[n];
      for (size_t w = 0; w < width; ++w) {
        found.first_weight[n * width + w] += upstream[n] * features[w];
      }
    }
  }
  const auto add = [&](const SourceReader& source, std::vector<double> own) {
    if (source.wanted(call)) source.add_gradient_of_numbers(call, std::move(own), sums);
  };
  add(first_weight_, std::move(found.first_weight));
  add(first_bias_, std::move(found.first_bias));
  add(second_weight_, std::move(found.second_weight));
}

}  // namespace relpos
