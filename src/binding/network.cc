#include "binding/network.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/zeros.h"
#include "binding/by_distance.h"

namespace relpos {
namespace {

double logistic(double x) { return 1.0 / (1.0 + std::exp(-x)); }

}  // namespace

NetworkTable::NetworkTable(std::string scheme, Network network, std::vector<int64_t> widths)
    : scheme_(std::move(scheme)), network_(std::move(network)), widths_(std::move(widths)) {
  for (const Source& number : network_.numbers) feature_numbers_.emplace_back(number);
  for (const Network::Layer& layer : network_.layers) {
    layers_.emplace_back(SourceReader(layer.weight), SourceReader(layer.bias));
  }
}

bool NetworkTable::wanted(const PartCall& call) const {
  const auto wants = [&](const SourceReader& source) { return source.wanted(call); };
  return std::any_of(feature_numbers_.begin(), feature_numbers_.end(), wants) ||
         std::any_of(layers_.begin(), layers_.end(),
                     [&](const auto& layer) { return wants(layer.first) || wants(layer.second); });
}

NetworkTable::Numbers NetworkTable::numbers(const PartCall& call) const {
  Numbers held;
  for (const SourceReader& source : feature_numbers_) {
    held.feature.push_back(source.numbers(call).at(0));
  }
  for (const auto& [weight, bias] : layers_) {
    held.layers.push_back({weight.numbers(call), bias.numbers(call)});
  }
  return held;
}

NetworkTable::Numbers NetworkTable::no_gradients() const {
  Numbers none;
  none.feature.resize(feature_numbers_.size());
  for (size_t n = 0; n < layers_.size(); ++n) {
    none.layers.push_back({zeros(widths_[n] * widths_[n + 1]), zeros(widths_[n + 1])});
  }
  return none;
}

double NetworkTable::activated(double x) const {
  return network_.activation == Network::Activation::kReLU ? std::max(x, 0.0) : x * logistic(x);
}

double NetworkTable::slope(double x) const {
  if (network_.activation == Network::Activation::kReLU) return x > 0 ? 1.0 : 0.0;
  return logistic(x) * (1.0 + x * logistic(-x));
}

NetworkTable::State NetworkTable::run(const Numbers& numbers, double delta,
                                      CancelTicks& tick) const {
  State state;
  std::vector<double> input{network_.feature.value(delta, numbers.feature.data())};
  for (const auto& [weight, bias] : numbers.layers) {
    std::vector<double> sum = bias;
    for (size_t to = 0; to < sum.size(); ++to) {
      tick(std::ssize(input));
      for (size_t from = 0; from < input.size(); ++from) {
        sum[to] += weight[to * input.size() + from] * input[from];
      }
    }
    state.inputs.push_back(std::move(input));
    input = sum;
    for (double& x : input) x = activated(x);
    state.sums.push_back(std::move(sum));
  }
  return state;
}

DistanceBias NetworkTable::bias(const PartCall& call) const {
  const int64_t first = call.sizes.first_distance, heads = widths_.back();
  const int64_t largest = *std::max_element(widths_.begin(), widths_.end());
  const int64_t count = distance_count(call.sizes, std::max(heads, largest), scheme_);
  const Numbers held = numbers(call);
  if (network_.check_reach) network_.check_reach(call.sizes.last_query, held.feature.data());
  std::vector<double> table = zeros(heads * count);
  constexpr int64_t kPiece = 64;
  in_parallel(call.sizes.threads, (count + kPiece - 1) / kPiece, [&](int64_t piece) {
    CancelTicks tick;
    for (int64_t m = piece * kPiece; m < std::min((piece + 1) * kPiece, count); ++m) {
      const std::vector<double> found = run(held, static_cast<double>(first + m), tick).sums.back();
      for (int64_t h = 0; h < heads; ++h) {
        table[static_cast<size_t>(h * count + m)] = found[static_cast<size_t>(h)];
      }
    }
  });
  DistanceBias bias;
  bias.map = ClassMap::clamp(first, first + count - 1);
  bias.table = TermData::computed(std::move(table), {heads, count}, wanted(call));
  return bias;
}

void NetworkTable::add_gradients(const Numbers& numbers, double delta, std::vector<double> upstream,
                                 Numbers& found, CancelTicks& tick) const {
  const State state = run(numbers, delta, tick);
  for (size_t n = numbers.layers.size(); n-- > 0;) {
    const std::vector<double>& input = state.inputs[n];
    std::vector<double> below(input.size(), 0.0);
    for (size_t to = 0; to < upstream.size(); ++to) {
      tick(std::ssize(input));
      found.layers[n].bias[to] += upstream[to];
      for (size_t from = 0; from < input.size(); ++from) {
        found.layers[n].weight[to * input.size() + from] += upstream[to] * input[from];
        below[from] += upstream[to] * numbers.layers[n].weight[to * input.size() + from];
      }
    }
    if (n > 0) {
      for (size_t from = 0; from < below.size(); ++from)
        below[from] *= slope(state.sums[n - 1][from]);
    }
    upstream = std::move(below);
  }
  network_.feature.add_gradients(delta, numbers.feature.data(), upstream[0], found.feature.data());
}

void NetworkTable::pull_back(const PartCall& call, const std::vector<double>& gradient,
                             ParameterSums& sums) const {
  if (!wanted(call)) return;
  const auto heads = static_cast<size_t>(widths_.back());
  const auto count = gradient.size() / heads;
  const Numbers held = numbers(call);
  Numbers found = no_gradients();
  CancelTicks tick;
  for (size_t m = 0; m < count; ++m) {
    tick(std::ssize(widths_));
    std::vector<double> upstream;
    for (size_t h = 0; h < heads; ++h) upstream.push_back(gradient[h * count + m]);
    if (std::all_of(upstream.begin(), upstream.end(), [](double x) { return x == 0.0; })) continue;
    const auto delta = static_cast<double>(call.sizes.first_distance + static_cast<int64_t>(m));
    add_gradients(held, delta, std::move(upstream), found, tick);
  }
  const auto add = [&](const SourceReader& source, std::vector<double> own) {
    if (source.wanted(call)) source.add_gradient_of_numbers(call, std::move(own), sums);
  };
  for (size_t n = 0; n < feature_numbers_.size(); ++n) {
    add(feature_numbers_[n], {found.feature[n]});
  }
  for (size_t n = 0; n < layers_.size(); ++n) {
    add(layers_[n].first, std::move(found.layers[n].weight));
    add(layers_[n].second, std::move(found.layers[n].bias));
  }
}

}  // namespace relpos
