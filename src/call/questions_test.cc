// How often calls ask their token while they compute numbers of distances: by counts, not by clocks.
#include "testing/questions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "relpos/attention.h"
#include "testing/schemes.h"

namespace relpos {
namespace {

struct Case {
  std::string position;
  int64_t heads, dim, length;
  int64_t steps;  // of the tables: features, terms of sums, weights of a network
};

class Questions : public testing::TestWithParam<Case> {
 protected:
  Tensor random(const std::vector<int64_t>& shape) {
    Tensor made(DType::kFloat32, shape);
    for (int64_t n = 0; n < made.view().numel(); ++n) {
      made.data<float>()[n] = 0.01F * static_cast<float>(++drawn_ % 97 - 48);
    }
    return made;
  }

 private:
  int64_t drawn_ = 0;
};

// The kernels ask, too, but less often than these tables.
TEST_P(Questions, KeepUpWithTheWork) {
  const Case& c = GetParam();
  SCOPED_TRACE(c.position);
  Position position = parse_position(c.position);
  std::vector<Tensor> memory;
  Gradients gradients;
  for (Part& part : position.parts) {
    gradients.parameters.emplace_back();
    for (const ParameterSpec& spec : part.specs()) {
      part.parameters.push_back(memory.emplace_back(random(spec.shape)).view());
      gradients.parameters.back().push_back(
          memory.emplace_back(DType::kFloat32, spec.shape).view());
    }
  }
  const std::vector<int64_t> shape{1, c.heads, c.length, c.dim};
  const Tensor q = random(shape), dout = random(shape), out(DType::kFloat32, shape);
  const Tensor softmax(DType::kFloat32, {1, c.heads, c.length, 2});
  Options options;
  options.threads = 1;
  const int64_t least = c.steps / CancelTicks::kEvery;
  EXPECT_GE(questions([&](CancelToken* token) {
              options.cancel = token;
              attention(q.view(), q.view(), q.view(), position, options, out.view(), {},
                        softmax.view());
            }),
            least);
  EXPECT_GE(questions([&](CancelToken* token) {
              options.cancel = token;
              attention_backward(q.view(), q.view(), q.view(), out.view(), softmax.view(),
                                 dout.view(), {}, position, options, gradients);
            }),
            2 * least);  // its table, and the gradients of what that came from
}

INSTANTIATE_TEST_SUITE_P(
    Of, Questions,
    testing::Values(Case{"enformer(heads=2, head_dim=8, features=6144)", 2, 8, 64, 127 * 6144},
                    Case{"tisa(heads=2, kernels=20000)", 2, 8, 32, 2 * 63 * 20000},
                    Case{"transformer_xl(heads=2, head_dim=64, width=4096)", 2, 64, 64, 127 * 4096},
                    Case{"conformer(heads=2, head_dim=64, width=4096)", 2, 64, 64, 127 * 4096},
                    Case{"dynamic_bias(heads=2, width=512)", 2, 8, 16, 512 * 512},
                    Case{"fire(heads=512, width=4096)", 512, 8, 4, 512 * 4096},
                    Case{"swin_v2(heads=2, window=2, hidden=100000)", 2, 8, 4, 100000 * 2}));

// What a scheme of the tests computes: at the number `last` the call is told to stop.
struct Meter {
  std::atomic<int64_t> done{0};
  int64_t last = 0;
  CancelToken token;

  void count() {
    if (++done == last) token.requested = true;
  }
};
Meter* meter = nullptr;

void formula(Builder& b) {
  const Source slopes = b.parameter("slopes", {4}, Init::constant(1), "");
  b.bias(
      [](double delta, auto slope) {
        meter->count();
        return slope * delta;
      },
      slopes);
}

void sum(Builder& b) {
  constexpr int64_t kCount = 50000;
  const Source slopes = b.parameter("slopes", {4, kCount}, Init::constant(1), "");
  b.bias_sum(
      kCount,
      [](double delta, auto slope) {
        meter->count();
        return slope * delta;
      },
      slopes);
}

void waves(Builder& b) {
  const Source slopes = b.parameter("slopes", {4}, Init::constant(1), "");
  b.bias_of(
      [](int64_t delta) {
        meter->count();
        return static_cast<double>(delta);
      },
      [](double n, auto slope) { return slope * n; }, slopes);
}

void features(Builder& b) {
  constexpr int64_t kWidth = 8192;
  const Source weight = b.parameter("weight", {4, kWidth}, Init::constant(1), "");
  b.projected_rows(4, weight, [](int64_t delta, double* to) {
    meter->count();
    std::fill_n(to, kWidth, static_cast<double>(delta));
  });
}

void network(Builder& b) {
  constexpr int64_t kWidth = 128;
  Network of_distance;
  of_distance.feature = distance_formula<0>([](double delta) {
    meter->count();
    return delta;
  });
  int64_t in = 1;
  for (const int64_t out : {kWidth, kWidth, int64_t{4}}) {
    const std::string name = std::to_string(of_distance.layers.size());
    const Source weight = b.parameter(name + ".weight", {out, in}, Init::constant(1), "");
    of_distance.layers.push_back(
        {weight, b.parameter(name + ".bias", {out}, Init::constant(1), "")});
    in = out;
  }
  b.bias(int64_t{4}, std::move(of_distance));
}

// Numbers that are still computed after the call was told to stop, by each of the threads.
template <void (*kTerms)(Builder&)>
void expect_stops(const char* name, int64_t last, int64_t most, int64_t reach = 5000) {
  const plain::Made made({{plain::toy<kTerms>()}});
  const Part& part = made.part();
  ParameterSums sums;
  for (const TensorView& view : part.parameters) sums.emplace_back(view.numel(), 0.0);
  const std::vector<bool> wants(part.parameters.size(), true);
  for (const int threads : {1, 4}) {
    CallSizes sizes;
    sizes.threads = threads;
    sizes.first_distance = -reach;
    sizes.last_distance = reach;
    const PartCall call{sizes, part.parameters, wants};
    const auto check = [&](const char* what, const std::function<void()>& f) {
      SCOPED_TRACE(std::string(name) + ", " + what + ", threads: " + std::to_string(threads));
      Meter counts;
      counts.last = last;
      meter = &counts;
      const CallScope scope(&counts.token);
      EXPECT_THROW(f(), Error);
      EXPECT_LE(counts.done - last, most * threads);
    };
    check("bind", [&] { part.recipe->bind(call); });
    Meter counts;
    meter = &counts;
    TermGradients gradients =
        TermGradients::zeros(part.recipe->bind({sizes, part.parameters, wants}));
    for (auto& bias : gradients.biases) bias.table.assign(bias.table.size(), 1.0);
    for (auto& rows : gradients.row_tables) rows.table.assign(rows.table.size(), 1.0);
    check("pull_back", [&] { part.recipe->pull_back(call, gradients, sums); });
  }
}

TEST(Questions, AreAskedWhileNumbersOfDistancesAreComputed) {
  expect_stops<formula>("formula", 1000, CancelTicks::kEvery);
  expect_stops<waves>("waves", 100, 4);
  expect_stops<features>("features", 3, 1);
  expect_stops<network>("network", 3, 64);  // those of a block, whose products take microseconds
}

TEST(Questions, AreAskedWithinOneSum) { expect_stops<sum>("sum", 1000, CancelTicks::kEvery, 10); }

}  // namespace
}  // namespace relpos
