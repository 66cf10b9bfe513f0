#include "binding/network.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/zeros.h"
#include "binding/by_distance.h"

namespace relpos {
namespace {

double logistic(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// The column of entry m of a gradient [heads, entries].
std::vector<double> column(const std::vector<double>& gradient, size_t heads, size_t m) {
  const size_t entries = gradient.size() / heads;
  std::vector<double> own;
  for (size_t h = 0; h < heads; ++h) own.push_back(gradient[h * entries + m]);
  return own;
}

}  // namespace

void Layers::add(const Source& weight, const std::optional<Source>& bias) {
  readers_.emplace_back(SourceReader(weight), SourceReader(bias));
}

bool Layers::wanted(const PartCall& call) const {
  return std::any_of(readers_.begin(), readers_.end(), [&](const auto& layer) {
    return layer.first.wanted(call) || layer.second.wanted(call);
  });
}

std::vector<Layers::Numbers> Layers::numbers(const PartCall& call) const {
  std::vector<Numbers> held;
  for (const auto& [weight, bias] : readers_) {
    const int64_t results = widths_[held.size() + 1];
    held.push_back({weight.numbers(call), bias.given() ? bias.numbers(call) : zeros(results)});
  }
  return held;
}

std::vector<Layers::Numbers> Layers::no_gradients() const {
  std::vector<Numbers> none;
  for (size_t n = 0; n < readers_.size(); ++n) {
    none.push_back({zeros(widths_[n] * widths_[n + 1]), zeros(widths_[n + 1])});
  }
  return none;
}

double Layers::activated(double x) const {
  return activation_ == Activation::kReLU ? std::max(x, 0.0) : x * logistic(x);
}

double Layers::slope(double x) const {
  if (activation_ == Activation::kReLU) return x > 0 ? 1.0 : 0.0;
  return logistic(x) * (1.0 + x * logistic(-x));
}

Layers::State Layers::run(const std::vector<Numbers>& numbers, std::vector<double> input,
                          CancelTicks& tick) const {
  State state;
  for (const auto& [weight, bias] : numbers) {
    std::vector<double> sums = bias;
    for (size_t to = 0; to < sums.size(); ++to) {
      tick(std::ssize(input));
      double sum = sums[to];
      for (size_t from = 0; from < input.size(); ++from) {
        sum += weight[to * input.size() + from] * input[from];
      }
      sums[to] = sum;
    }
    state.inputs.push_back(std::move(input));
    input = sums;
    for (double& x : input) x = activated(x);
    state.sums.push_back(std::move(sums));
  }
  return state;
}

std::vector<double> Layers::add_gradients(const std::vector<Numbers>& numbers, const State& state,
                                          std::vector<double> upstream, std::vector<Numbers>& found,
                                          CancelTicks& tick) const {
  for (size_t n = numbers.size(); n-- > 0;) {
    const std::vector<double>& input = state.inputs[n];
    std::vector<double> below(input.size(), 0.0);
    for (size_t to = 0; to < upstream.size(); ++to) {
      const double own = upstream[to];
      if (own == 0.0) continue;  // about half of them, behind a ReLU
      tick(std::ssize(input));
      found[n].bias[to] += own;
      for (size_t from = 0; from < input.size(); ++from) {
        found[n].weight[to * input.size() + from] += own * input[from];
        below[from] += own * numbers[n].weight[to * input.size() + from];
      }
    }
    for (size_t from = 0; n > 0 && from < below.size(); ++from) {
      const double factor = slope(state.sums[n - 1][from]);
      below[from] = factor == 0.0 ? 0.0 : below[from] * factor;  // as torch's relu, of a NaN too
    }
    upstream = std::move(below);
  }
  return upstream;
}

void Layers::write(const PartCall& call, std::vector<Numbers> found, ParameterSums& sums) const {
  for (size_t n = 0; n < readers_.size(); ++n) {
    const auto& [weight, bias] = readers_[n];
    weight.add_gradient_of_numbers(call, std::move(found[n].weight), sums);
    bias.add_gradient_of_numbers(call, std::move(found[n].bias), sums);
  }
}

NetworkTable::NetworkTable(std::string scheme, Network network, std::vector<int64_t> widths)
    : scheme_(std::move(scheme)),
      network_(std::move(network)),
      layers_(network_.activation, std::move(widths)) {
  for (const Source& number : network_.numbers) feature_numbers_.emplace_back(number);
  for (const Network::Layer& layer : network_.layers) layers_.add(layer.weight, layer.bias);
}

bool NetworkTable::wanted(const PartCall& call) const {
  return layers_.wanted(call) ||
         std::any_of(feature_numbers_.begin(), feature_numbers_.end(),
                     [&](const SourceReader& source) { return source.wanted(call); });
}

std::vector<double> NetworkTable::feature_numbers(const PartCall& call) const {
  std::vector<double> held;
  for (const SourceReader& source : feature_numbers_) held.push_back(source.numbers(call).at(0));
  return held;
}

DistanceBias NetworkTable::bias(const PartCall& call) const {
  const std::vector<int64_t>& widths = layers_.widths();
  const int64_t first = call.sizes.first_distance, heads = widths.back();
  const int64_t largest = *std::max_element(widths.begin(), widths.end());
  const int64_t count = distance_count(call.sizes, std::max(heads, largest), scheme_);
  const std::vector<Layers::Numbers> held = layers_.numbers(call);
  const std::vector<double> of_feature = feature_numbers(call);
  if (network_.check_reach) network_.check_reach(call.sizes.last_query, of_feature.data());
  std::vector<double> table = zeros(heads * count);
  constexpr int64_t kPiece = 64;
  in_parallel(call.sizes.threads, (count + kPiece - 1) / kPiece, [&](int64_t piece) {
    CancelTicks tick;
    for (int64_t m = piece * kPiece; m < std::min((piece + 1) * kPiece, count); ++m) {
      const auto delta = static_cast<double>(first + m);
      const Layers::State state =
          layers_.run(held, {network_.feature.value(delta, of_feature.data())}, tick);
      for (int64_t h = 0; h < heads; ++h) {
        table[static_cast<size_t>(h * count + m)] = state.sums.back()[static_cast<size_t>(h)];
      }
    }
  });
  DistanceBias bias;
  bias.map = ClassMap::clamp(first, first + count - 1);
  bias.table = TermData::computed(std::move(table), {heads, count}, wanted(call));
  return bias;
}

void NetworkTable::pull_back(const PartCall& call, const std::vector<double>& gradient,
                             ParameterSums& sums) const {
  if (!wanted(call)) return;
  const auto heads = static_cast<size_t>(layers_.widths().back());
  const std::vector<Layers::Numbers> held = layers_.numbers(call);
  const std::vector<double> of_feature = feature_numbers(call);
  std::vector<Layers::Numbers> found = layers_.no_gradients();
  std::vector<double> found_feature(of_feature.size());
  CancelTicks tick;
  for (size_t m = 0; m < gradient.size() / heads; ++m) {
    tick(std::ssize(layers_.widths()));
    std::vector<double> upstream = column(gradient, heads, m);
    if (std::all_of(upstream.begin(), upstream.end(), [](double x) { return x == 0.0; })) continue;
    const auto delta = static_cast<double>(call.sizes.first_distance + static_cast<int64_t>(m));
    const Layers::State state =
        layers_.run(held, {network_.feature.value(delta, of_feature.data())}, tick);
    upstream = layers_.add_gradients(held, state, std::move(upstream), found, tick);
    network_.feature.add_gradients(delta, of_feature.data(), upstream[0], found_feature.data());
  }
  for (size_t n = 0; n < feature_numbers_.size(); ++n) {
    feature_numbers_[n].add_gradient_of_numbers(call, {found_feature[n]}, sums);
  }
  layers_.write(call, std::move(found), sums);
}

PerceptronTable::PerceptronTable(const Perceptron& perceptron, int64_t width, int64_t hidden,
                                 int64_t heads, int64_t entries)
    : layers_(Network::Activation::kReLU, {width, hidden, heads}),
      features_(perceptron.features),
      sigmoid_(perceptron.sigmoid),
      entries_(entries) {
  layers_.add(perceptron.first_weight, perceptron.first_bias);
  layers_.add(perceptron.second_weight, std::nullopt);
}

Layers::State PerceptronTable::run(const std::vector<Layers::Numbers>& numbers, int64_t entry,
                                   CancelTicks& tick) const {
  std::vector<double> features(static_cast<size_t>(layers_.widths().front()));
  features_(entry, features.data());
  return layers_.run(numbers, std::move(features), tick);
}

TermData PerceptronTable::table(const PartCall& call) const {
  const std::vector<Layers::Numbers> held = layers_.numbers(call);
  const int64_t heads = layers_.widths().back();
  std::vector<double> table = zeros(heads * entries_);
  CancelTicks tick;
  for (int64_t m = 0; m < entries_; ++m) {
    const Layers::State state = run(held, m, tick);
    for (int64_t h = 0; h < heads; ++h) {
      const double result = state.sums.back()[static_cast<size_t>(h)];
      table[static_cast<size_t>(h * entries_ + m)] =
          sigmoid_ == 0.0 ? result : sigmoid_ * logistic(result);
    }
  }
  return TermData::computed(std::move(table), {heads, entries_}, layers_.wanted(call));
}

void PerceptronTable::pull_back(const PartCall& call, const std::vector<double>& gradient,
                                ParameterSums& sums) const {
  if (!layers_.wanted(call)) return;
  const auto heads = static_cast<size_t>(layers_.widths().back());
  const std::vector<Layers::Numbers> held = layers_.numbers(call);
  std::vector<Layers::Numbers> found = layers_.no_gradients();
  CancelTicks tick;
  for (int64_t m = 0; m < entries_; ++m) {
    const Layers::State state = run(held, m, tick);
    std::vector<double> upstream = column(gradient, heads, static_cast<size_t>(m));
    for (size_t h = 0; sigmoid_ != 0.0 && h < heads; ++h) {
      const double result = state.sums.back()[h];
      upstream[h] *= sigmoid_ * logistic(result) * logistic(-result);
    }
    layers_.add_gradients(held, state, std::move(upstream), found, tick);
  }
  layers_.write(call, std::move(found), sums);
}

}  // namespace relpos
