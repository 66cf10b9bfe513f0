// What terms give back to parameters, against differences of the bound numbers: of every scheme, and of
// one that says two terms of each kind through every view.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "kernels/problem.h"
#include "testing/schemes.h"
#include "values/term_kinds.h"

namespace relpos {
namespace {

void everything(Builder& b) {
  const Init init = Init::normal(1);
  const Source table = b.parameter("table", {3, 2}, init, ""),
               stack = b.parameter("stack", {2, 3, 4}, init, ""),
               slopes = b.parameter("slopes", {2, 2}, init, ""),
               values = b.parameter("values", {3, 4}, init, ""),
               vectors = b.parameter("vectors", {3, 2, 4}, init, ""),
               weight = b.parameter("weight", {8, 6}, init, ""),
               gates = b.input("gates", {kBatch, kHeads, kKeys}, init, ""),
               factor = b.input("factor", {kBatch, kHeads, kQueries, 4}, init, "");
  const ClassMap map = ClassMap::clamp(-1, 1);
  b.bias(map, 2.0 * table.transposed());
  b.slopes(slopes[1], std::nullopt);
  b.bias([](double delta, auto x, auto y) { return x * delta + exp(-y * abs(delta)) / y; },
         slopes[0], 0.5 * slopes[1].at_least(-9));
  b.rows(map, -stack, {.factor = factor, .added = vectors[0]});
  b.projected_rows(
      2, weight,
      [](int64_t delta, double* to) {
        for (int n = 0; n < 6; ++n) to[n] = std::cos(delta + n);
      },
      vectors[1]);
  b.columns(map, stack);
  b.columns(map, 3.0 * values);
  b.values(map, values);
  b.values(map, stack[1]);
  b.query_added(vectors[2]);
  b.query_added(vectors[0]);
  b.key_bias(-gates.cumulative());
  b.key_bias(gates);
}

// A sum of all numbers of the terms, each with a weight of its own; `gradients` becomes its gradient.
double weighted(const Terms& terms, TermGradients& gradients) {
  double sum = 0.0, place = 0.0;
  gradients = TermGradients::zeros(terms);
  for_each_number(terms, gradients, [&](auto&&, const TermData& data, auto& gradient, HeadAxis) {
    if (!data.view.given()) return;
    const int64_t count = data.view.numel();
    const TensorView places(nullptr, DType::kFloat64, data.view.dims());
    for (int64_t n = 0; n < count; ++n) {
      int64_t rest = n, at = 0;
      for (int axis = 0; axis < data.view.rank; ++axis) {
        const auto a = static_cast<size_t>(axis);
        at += rest / places.strides[a] * data.view.strides[a];
        rest %= places.strides[a];
      }
      const double weight = data.multiplier * std::sin(1.0 + 0.7 * (place += 1.0));
      sum += weight * data.view.load(at);
      if (!gradient.empty()) gradient[static_cast<size_t>(n)] = weight;
    }
  });
  return sum;
}

void expect_differences(Part part) {
  SCOPED_TRACE(part.scheme().name);
  CallSizes sizes;
  sizes.first_distance = -7;
  sizes.last_distance = 5;
  sizes.own_kv_heads = 2;
  const InputSizes of_call{.batch = 2, .heads = 2, .queries = 4, .keys = 5};
  std::mt19937_64 random(5);
  std::uniform_real_distribution<double> uniform(0.2, 1.7);  // where nothing is read within bounds
  std::vector<Tensor> memory;
  ParameterSums sums;
  std::vector<bool> wants;
  for (const ParameterSpec& spec : part.specs()) {
    memory.emplace_back(spec.integers() ? spec.integer : DType::kFloat64, of_call.example(spec));
    part.parameters.push_back(memory.back().view());
    const auto count = static_cast<size_t>(memory.back().view().numel());
    wants.push_back(!spec.integers());
    sums.emplace_back(wants.back() ? count : 0, 0.0);
    if (!wants.back()) continue;
    for (size_t n = 0; n < count; ++n) memory.back().data<double>()[n] = uniform(random);
  }
  const std::vector<bool> none(wants.size(), false);
  const Terms frozen = part.recipe->bind({sizes, part.parameters, none});
  const TermGradients of_frozen = TermGradients::zeros(frozen);
  for_each_number(frozen, of_frozen, [](const char* name, auto&&, const auto& gradient, HeadAxis) {
    EXPECT_TRUE(gradient.empty()) << name << " of parameters that want none";
  });
  const PartCall call{sizes, part.parameters, wants};
  TermGradients gradients, unused;
  weighted(part.recipe->bind(call), gradients);
  part.recipe->pull_back(call, gradients, sums);
  for (size_t p = 0; p < sums.size(); ++p) {
    for (size_t n = 0; n < sums[p].size(); ++n) {
      double& number = memory[p].data<double>()[n];
      const double held = number, step = 1e-5;
      number = held + step;
      const double above = weighted(part.recipe->bind(call), unused);
      number = held - step;
      const double below = weighted(part.recipe->bind(call), unused);
      number = held;
      EXPECT_NEAR(sums[p][n], (above - below) / (2 * step), 1e-6 * (1 + std::fabs(sums[p][n])))
          << part.specs()[p].name << " " << n;
    }
  }
}

TEST(Builder, GradientsAreDifferences) {
  expect_differences(plain::toy<everything>());
  const OptionValues sizes = {{"heads", int64_t{2}},
                              {"head_dim", int64_t{4}},
                              {"max_distance", int64_t{4}},
                              {"max_length", int64_t{4}},
                              {"buckets", int64_t{4}},
                              {"hidden", int64_t{3}},
                              {"width", int64_t{4}},
                              {"features", int64_t{6}},
                              {"rank", int64_t{2}},
                              {"extent", int64_t{4}},
                              {"layout", "half"},
                              {"learned", true},
                              {"window", std::vector<double>{2.0, 3.0}},
                              {"grid", std::vector<double>{2.0, 3.0}}};
  for (const Scheme& scheme : schemes()) {
    OptionValues own;
    for (const OptionSpec& spec : scheme.options) {
      const auto given = std::find_if(sizes.begin(), sizes.end(),
                                      [&](const auto& size) { return size.first == spec.name; });
      if (given != sizes.end()) {
        own.push_back(*given);
      } else if (spec.required && spec.type == OptionType::kInt) {
        own.emplace_back(spec.name, int64_t{4});
      }
    }
    expect_differences(make_part(scheme, own));
  }
}

}  // namespace
}  // namespace relpos
