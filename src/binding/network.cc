#include "binding/network.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/parallel.h"
#include "base/table_math.h"
#include "base/zeros.h"
#include "binding/by_distance.h"

namespace relpos {
namespace {

double sigmoid_of(double x) { return 1.0 / (1.0 + std::exp(-x)); }

int64_t padded(int64_t width) { return round_up(width, kLanes); }

Buffer<double> zeroed(int64_t count) {
  Buffer<double> values(count);
  fill_zeros(values.get(), count);
  return values;
}

void accumulate(const Buffer<double>& from, const Buffer<double>& to) {
  in_pieces(to.size(), [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) to[i] += from[i];
  });
}

// The entries whose gradient is not 0 for every head: a distance that no pair has sends nothing back, even
// where its results are not finite.
std::vector<int64_t> entries_with_gradient(const std::vector<double>& gradient, int64_t heads) {
  const int64_t entries = std::ssize(gradient) / heads;
  std::vector<int64_t> found;
  CancelTicks tick;
  for (int64_t m = 0; m < entries; ++m) {
    tick(heads);
    for (int64_t h = 0; h < heads; ++h) {
      if (gradient[static_cast<size_t>(h * entries + m)] == 0.0) continue;
      found.push_back(m);
      break;
    }
  }
  return found;
}

}  // namespace

// Entries that are computed together: as many as keep a block of wide layers to 8 MiB or to one entry.
int64_t Layers::at_a_time() const {
  constexpr int64_t kMost = 64, kNumbers = int64_t{1} << 20;
  int64_t numbers = 0;
  for (const int64_t width : widths_) numbers += 5 * padded(width);
  return std::clamp<int64_t>(kNumbers / numbers, 1, kMost);
}

// Some entries: their numbers, and what each layer sums, [rows, width] with padded rows.
struct Layers::Block {
  explicit Block(const Layers& layers) {
    const int64_t most = layers.at_a_time();
    for (const int64_t width : layers.widths_) sums.emplace_back(most * padded(width));
    fill_zeros(sums[0].get(), sums[0].size());
    const int64_t largest = padded(*std::max_element(layers.widths_.begin(), layers.widths_.end()));
    for (Buffer<double>* own : {&activated, &gradient, &below, &scratch}) {
      *own = Buffer<double>(most * largest);
    }
  }

  int64_t rows = 0;
  std::vector<Buffer<double>> sums;  // sums[0]: the entries' numbers
  // Activated sums of a layer; the gradients of a layer's sums and of those of the layer below.
  Buffer<double> activated, gradient, below, scratch;
};

void Layers::add(const Source& weight, const std::optional<Source>& bias) {
  readers_.emplace_back(SourceReader(weight), SourceReader(bias));
}

bool Layers::wanted(const PartCall& call) const {
  return std::any_of(readers_.begin(), readers_.end(), [&](const auto& layer) {
    return layer.first.wanted(call) || layer.second.wanted(call);
  });
}

std::vector<Layers::Weights> Layers::weights(const PartCall& call) const {
  std::vector<Weights> held;
  CancelTicks tick;
  for (const auto& [weight, bias] : readers_) {
    const int64_t in = widths_[held.size()], out = widths_[held.size() + 1];
    Weights own{zeroed(in * padded(out)), zeroed(out * padded(in)), zeroed(padded(out))};
    const std::vector<double> numbers = weight.numbers(call);
    for (int64_t to = 0; to < out; ++to) {
      tick(in);
      for (int64_t from = 0; from < in; ++from) {
        const double number = numbers[static_cast<size_t>(to * in + from)];
        own.forward[from * padded(out) + to] = number;
        own.backward[to * padded(in) + from] = number;
      }
    }
    if (bias.given()) {
      const std::vector<double> added = bias.numbers(call);
      std::copy(added.begin(), added.end(), own.bias.get());
    }
    held.push_back(std::move(own));
  }
  return held;
}

std::vector<Layers::Gradients> Layers::no_gradients() const {
  std::vector<Gradients> none;
  for (size_t n = 0; n < readers_.size(); ++n) {
    none.push_back({zeroed(widths_[n + 1] * padded(widths_[n])), zeroed(padded(widths_[n + 1]))});
  }
  return none;
}

void Layers::activate(int64_t n, const double* sums, double* to) const {
  if (activation_ == Activation::kReLU) {
    for (int64_t i = 0; i < n; ++i) to[i] = sums[i] < 0.0 ? 0.0 : sums[i];  // a NaN stays one
    return;
  }
  logistic(n, sums, to);
  for (int64_t i = 0; i < n; ++i) to[i] *= sums[i];
}

void Layers::multiply_slopes(int64_t n, const double* sums, double* gradient,
                             double* scratch) const {
  if (activation_ == Activation::kReLU) {  // as torch's, of a NaN too
    for (int64_t i = 0; i < n; ++i) gradient[i] = sums[i] > 0.0 ? gradient[i] : 0.0;
    return;
  }
  logistic(n, sums, scratch);
  for (int64_t i = 0; i < n; ++i) {
    gradient[i] *= scratch[i] * (1.0 + sums[i] * (1.0 - scratch[i]));
  }
}

void Layers::run(const std::vector<Weights>& weights, Block& block) const {
  const double* input = block.sums[0].get();
  for (size_t n = 0; n < weights.size(); ++n) {
    const int64_t in = padded(widths_[n]), out = padded(widths_[n + 1]);
    double* sums = block.sums[n + 1].get();
    for (int64_t row = 0; row < block.rows; ++row) {
      std::copy_n(weights[n].bias.get(), out, sums + row * out);
    }
    add_matrix_product(block.rows, out, widths_[n], input, in, 1, weights[n].forward.get(), out,
                       sums, out);
    if (n + 1 == weights.size()) return;
    activate(block.rows * out, sums, block.activated.get());
    input = block.activated.get();
  }
}

// From the gradient of the results in block.gradient to that of the entries' numbers, there too.
void Layers::add_gradients(const std::vector<Weights>& weights, Block& block,
                           std::vector<Gradients>& found) const {
  for (size_t n = weights.size(); n-- > 0;) {
    const int64_t in = padded(widths_[n]), out = padded(widths_[n + 1]);
    const double *sums = block.sums[n].get(), *input = sums;
    if (n > 0) {
      activate(block.rows * in, sums, block.activated.get());
      input = block.activated.get();
    }
    double* gradient = block.gradient.get();
    for (int64_t row = 0; row < block.rows; ++row) {
      for (int64_t to = 0; to < out; ++to) {
        found[n].bias[to] += gradient[row * out + to];
      }
    }
    add_matrix_product(widths_[n + 1], in, block.rows, gradient, 1, out, input, in,
                       found[n].weight.get(), in);
    fill_zeros(block.below.get(), block.rows * in);
    add_matrix_product(block.rows, in, widths_[n + 1], gradient, out, 1, weights[n].backward.get(),
                       in, block.below.get(), in);
    if (n > 0) multiply_slopes(block.rows * in, sums, block.below.get(), block.scratch.get());
    std::swap(block.gradient, block.below);
  }
}

std::vector<double> Layers::results(const PartCall& call, int64_t entries,
                                    const Inputs& inputs) const {
  const int64_t heads = widths_.back(), most = at_a_time();
  const std::vector<Weights> held = weights(call);
  std::vector<double> found = zeros(heads * entries);
  in_parallel(call.sizes.threads, (entries + most - 1) / most, [&](int64_t piece) {
    Block block(*this);
    const int64_t first = piece * most;
    block.rows = std::min(most, entries - first);
    for (int64_t row = 0; row < block.rows; ++row) {
      inputs(first + row, block.sums[0].get() + row * padded(widths_[0]));
    }
    run(held, block);
    for (int64_t row = 0; row < block.rows; ++row) {
      for (int64_t h = 0; h < heads; ++h) {
        const double sum = block.sums.back()[row * padded(heads) + h];
        found[static_cast<size_t>(h * entries + first + row)] =
            sigmoid_ == 0.0 ? sum : sigmoid_ * sigmoid_of(sum);
      }
    }
  });
  return found;
}

std::vector<double> Layers::pull_back(const PartCall& call, const std::vector<double>& gradient,
                                      const Inputs& inputs, ParameterSums& sums, int64_t count,
                                      const InputGradients& input_gradients) const {
  const int64_t heads = widths_.back(), entries = std::ssize(gradient) / heads;
  const int64_t most = at_a_time();
  const std::vector<Weights> held = weights(call);
  const std::vector<int64_t> used = entries_with_gradient(gradient, heads);

  struct Share {
    std::vector<Gradients> found;
    std::vector<double> of_inputs;
  };
  // Each share sums its own blocks. Their number follows from sizes alone, and so do the bits.
  constexpr int64_t kMostShares = 16, kNumbers = int64_t{1} << 21;
  int64_t numbers = 1;
  for (size_t n = 0; n < readers_.size(); ++n) numbers += widths_[n + 1] * padded(widths_[n]);
  const int64_t blocks = (std::ssize(used) + most - 1) / most;
  const int64_t count_of_shares =
      std::max<int64_t>(1, std::min({kMostShares, kNumbers / numbers, blocks}));
  std::vector<Share> shares(static_cast<size_t>(count_of_shares));

  in_parallel(call.sizes.threads, count_of_shares, [&](int64_t at) {
    Share& own = shares[static_cast<size_t>(at)];
    own = {no_gradients(), zeros(count)};
    Block block(*this);
    const int64_t in = padded(widths_[0]), out = padded(heads);
    for (int64_t b = at * blocks / count_of_shares; b < (at + 1) * blocks / count_of_shares; ++b) {
      const int64_t* entry = used.data() + b * most;
      block.rows = std::min(most, std::ssize(used) - b * most);
      for (int64_t row = 0; row < block.rows; ++row) {
        inputs(entry[row], block.sums[0].get() + row * in);
      }
      run(held, block);
      fill_zeros(block.gradient.get(), block.rows * out);
      for (int64_t row = 0; row < block.rows; ++row) {
        for (int64_t h = 0; h < heads; ++h) {
          const double sum = block.sums.back()[row * out + h];
          const double slope =
              sigmoid_ == 0.0 ? 1.0 : sigmoid_ * sigmoid_of(sum) * sigmoid_of(-sum);
          block.gradient[row * out + h] =
              gradient[static_cast<size_t>(h * entries + entry[row])] * slope;
        }
      }
      add_gradients(held, block, own.found);
      for (int64_t row = 0; input_gradients && row < block.rows; ++row) {
        input_gradients(entry[row], block.gradient.get() + row * in, own.of_inputs.data());
      }
    }
  });

  Share& all = shares[0];
  for (size_t at = 1; at < shares.size(); ++at) {
    for (size_t n = 0; n < readers_.size(); ++n) {
      accumulate(shares[at].found[n].weight, all.found[n].weight);
      accumulate(shares[at].found[n].bias, all.found[n].bias);
    }
    for (size_t i = 0; i < all.of_inputs.size(); ++i) {
      all.of_inputs[i] += shares[at].of_inputs[i];
    }
  }
  for (size_t n = 0; n < readers_.size(); ++n) {
    const int64_t in = widths_[n], out = widths_[n + 1];
    std::vector<double> own = zeros(out * in);
    for (int64_t to = 0; to < out; ++to) {
      std::copy_n(all.found[n].weight.get() + to * padded(in), in, own.begin() + to * in);
    }
    const auto& [weight, bias] = readers_[n];
    const double* of_bias = all.found[n].bias.get();
    weight.add_gradient_of_numbers(call, std::move(own), sums);
    bias.add_gradient_of_numbers(call, {of_bias, of_bias + out}, sums);
  }
  return std::move(all.of_inputs);
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

Layers::Inputs NetworkTable::feature(const PartCall& call,
                                     const std::vector<double>& numbers) const {
  return [this, &numbers, first = call.sizes.first_distance](int64_t m, double* feature) {
    *feature = network_.feature.value(static_cast<double>(first + m), numbers.data());
  };
}

DistanceBias NetworkTable::bias(const PartCall& call) const {
  const std::vector<int64_t>& widths = layers_.widths();
  const int64_t first = call.sizes.first_distance, heads = widths.back();
  const int64_t largest = *std::max_element(widths.begin(), widths.end());
  const int64_t count = distance_count(call.sizes, std::max(heads, largest), scheme_);
  const std::vector<double> of_feature = feature_numbers(call);
  if (network_.check_reach) network_.check_reach(call.sizes.last_query, of_feature.data());
  DistanceBias bias;
  bias.map = ClassMap::clamp(first, first + count - 1);
  bias.table = TermData::computed(layers_.results(call, count, feature(call, of_feature)),
                                  {heads, count}, wanted(call));
  return bias;
}

void NetworkTable::pull_back(const PartCall& call, const std::vector<double>& gradient,
                             ParameterSums& sums) const {
  if (!wanted(call)) return;
  const std::vector<double> of_feature = feature_numbers(call);
  const auto add = [&](int64_t m, const double* upstream, double* found) {
    const auto delta = static_cast<double>(call.sizes.first_distance + m);
    network_.feature.add_gradients(delta, of_feature.data(), *upstream, found);
  };
  const std::vector<double> found = layers_.pull_back(call, gradient, feature(call, of_feature),
                                                      sums, std::ssize(of_feature), add);
  for (size_t n = 0; n < feature_numbers_.size(); ++n) {
    feature_numbers_[n].add_gradient_of_numbers(call, {found[n]}, sums);
  }
}

PerceptronTable::PerceptronTable(const Perceptron& perceptron, int64_t width, int64_t hidden,
                                 int64_t heads, int64_t entries)
    : layers_(Network::Activation::kReLU, {width, hidden, heads}, perceptron.sigmoid),
      features_(perceptron.features),
      entries_(entries) {
  layers_.add(perceptron.first_weight, perceptron.first_bias);
  layers_.add(perceptron.second_weight, std::nullopt);
}

TermData PerceptronTable::table(const PartCall& call) const {
  return TermData::computed(layers_.results(call, entries_, features_),
                            {layers_.widths().back(), entries_}, layers_.wanted(call));
}

void PerceptronTable::pull_back(const PartCall& call, const std::vector<double>& gradient,
                                ParameterSums& sums) const {
  if (layers_.wanted(call)) layers_.pull_back(call, gradient, features_, sums);
}

}  // namespace relpos
