// Networks of a distance: what does not depend on threads, and what sends nothing back.
#include "binding/network.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "testing/schemes.h"

namespace relpos {
namespace {

constexpr int64_t kNear = 100;

// No number beyond kNear, as a logarithm of what has become negative.
void near_network(Builder& b) {
  Network network;
  network.activation = Network::Activation::kSiLU;
  network.feature = distance_formula<0>([](double delta) {
    return std::fabs(delta) > kNear ? std::numeric_limits<double>::quiet_NaN() : delta / kNear;
  });
  int64_t in = 1;
  for (const int64_t out : {int64_t{5}, int64_t{20}, int64_t{3}}) {
    const std::string name = std::to_string(in);
    const Source weight = b.parameter("weight" + name, {out, in}, Init::uniform(-1, 1), "");
    network.layers.push_back({weight, b.parameter("bias" + name, {out}, Init::uniform(-1, 1), "")});
    in = out;
  }
  b.bias(int64_t{3}, std::move(network));
}

struct Found {
  std::vector<double> table;
  ParameterSums sums;
};

// At the distances -reach ... reach; the gradient of the table is 0 beyond kNear.
Found found(int64_t reach, int threads) {
  plain::Made made({{plain::toy<near_network>()}});
  const Part& part = made.part();
  Found result;
  double place = 0.0;
  for (const TensorView& view : part.parameters) {
    for (int64_t n = 0; n < view.numel(); ++n) view.store(n, std::sin(place += 1.0));
    result.sums.emplace_back(view.numel(), 0.0);
  }
  CallSizes sizes;
  sizes.threads = threads;
  sizes.first_distance = -reach;
  sizes.last_distance = reach;
  const std::vector<bool> wants(part.parameters.size(), true);
  const PartCall call{sizes, part.parameters, wants};
  const Terms terms = part.recipe->bind(call);
  const TensorView view = terms.biases.at(0).table.view;
  for (int64_t n = 0; n < view.numel(); ++n) result.table.push_back(view.load(n));
  TermGradients gradients = TermGradients::zeros(terms);
  std::vector<double>& table = gradients.biases.at(0).table;
  for (size_t n = 0; n < table.size(); ++n) {
    const int64_t delta = static_cast<int64_t>(n) % (2 * reach + 1) - reach;
    table[n] = std::abs(delta) > kNear ? 0.0 : std::cos(static_cast<double>(delta));
  }
  part.recipe->pull_back(call, gradients, result.sums);
  return result;
}

TEST(Networks, HaveTheSameBitsOnAnyNumberOfThreads) {
  const Found one = found(kNear, 1), four = found(kNear, 4);
  EXPECT_EQ(one.table, four.table);
  EXPECT_EQ(one.sums, four.sums);
  for (const std::vector<double>& sums : one.sums) {
    EXPECT_TRUE(std::any_of(sums.begin(), sums.end(), [](double x) { return x != 0.0; }));
  }
}

TEST(Networks, SendNothingBackFromEntriesWithoutGradient) {
  const Found near = found(kNear, 1), far = found(5 * kNear, 1);
  EXPECT_TRUE(std::isnan(far.table[0]));
  EXPECT_EQ(near.sums, far.sums);
}

}  // namespace
}  // namespace relpos
