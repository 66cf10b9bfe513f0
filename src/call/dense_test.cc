// Dense forms against formulas written pair by pair; the schemes here exist in this test only.
#include "relpos/dense.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include "relpos/scheme.h"

namespace relpos {
namespace {

constexpr int64_t kHeads = 2, kRows = 4, kDim = 3;
const Grid kGrid{3, 5, 1};

// A bias with a table (clamped to [-2, 1]) and slopes, each with a multiplier.
struct Bias {
  void options(OptionList&) {}
  void terms(Builder& b) const {
    b.bias(ClassMap::clamp(-2, 1),
           2.0 * b.parameter("table", {kHeads, kRows}, Init::constant(0), ""));
    const Source slopes = b.parameter("slopes", {2, kHeads}, Init::constant(1), "");
    b.slopes(3.0 * slopes[0], 3.0 * slopes[1]);
  }
};

// Rows for keys, shared or per head, none outside [-2, 1]; rows for values.
template <bool per_head>
struct Rows {
  void options(OptionList&) {}
  void terms(Builder& b) const {
    const auto heads = per_head ? std::optional<int64_t>(kHeads) : std::nullopt;
    b.rows(ClassMap::zero_outside(-2, 1),
           0.5 * b.parameter("keys", table_shape(heads, kRows, kDim), Init::normal(1), ""));
    b.values(ClassMap::clamp(-2, 1, true),
             b.parameter("values", {kRows, kDim}, Init::normal(1), ""));
  }
};

struct Both {
  void options(OptionList&) {}
  void terms(Builder& b) const {
    Bias().terms(b);
    b.rows(ClassMap::clamp(0, 0), b.parameter("row", {1, kDim}, Init::constant(0), ""));
  }
};

struct Nothing {
  void options(OptionList&) {}
  void terms(Builder&) const {}
};

const Scheme kBias = make_scheme<Bias>("toy", "Toy", "", "");
const Scheme kShared = make_scheme<Rows<false>>("toy", "Toy", "", "");
const Scheme kPerHead = make_scheme<Rows<true>>("toy", "Toy", "", "");
const Scheme kBoth = make_scheme<Both>("toy", "Toy", "", "");
const Scheme kNothing = make_scheme<Nothing>("toy", "Toy", "", "");

double number(size_t n) { return std::sin(1.0 + 0.7 * static_cast<double>(n)); }

Tensor numbers(std::vector<int64_t> shape, DType dtype = DType::kFloat64) {
  Tensor tensor(dtype, std::move(shape));
  for (int64_t n = 0; n < tensor.view().numel(); ++n) {
    tensor.view().store(n, number(static_cast<size_t>(n)));
  }
  return tensor;
}

// A part with its parameters' memory.
struct Made {
  Part part;
  std::vector<Tensor> memory;

  explicit Made(const Scheme& s, DType dtype = DType::kFloat64) : part(make_part(s, {})) {
    for (const ParameterSpec& spec : part.specs()) {
      memory.push_back(numbers(spec.shape, dtype));
    }
    for (const Tensor& tensor : memory) part.parameters.push_back(tensor.view());
  }
};

double expected_bias(const Made& made, int64_t h, int64_t i, int64_t j) {
  const int64_t delta = j - (i + kGrid.q_offset);
  const int64_t row = std::clamp<int64_t>(delta, -2, 1) + 2;
  const double slope = made.part.parameters[1].at({delta < 0 ? 0 : 1, h});
  return 2.0 * made.part.parameters[0].at({h, row}) + 3.0 * slope * static_cast<double>(delta);
}

std::string error(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    return e.what();
  }
  return "none";
}

TEST(Dense, Bias) {
  const Made made(kBias);
  EXPECT_EQ(dense_shape(made.part, kGrid, "key"), (std::vector<int64_t>{kHeads, 3, 5}));
  const Tensor out(DType::kFloat64, {kHeads, 3, 5});
  dense(made.part, kGrid, "key", out.view());
  for (int64_t h = 0; h < kHeads; ++h) {
    for (int64_t i = 0; i < 3; ++i) {
      for (int64_t j = 0; j < 5; ++j) {
        EXPECT_DOUBLE_EQ(out.view().at({h, i, j}), expected_bias(made, h, i, j));
      }
    }
  }
}

TEST(Dense, RowsOfKeysAndValues) {
  for (const Scheme* s : {&kShared, &kPerHead}) {
    const Made made(*s);
    const bool per_head = s == &kPerHead;
    std::vector<int64_t> shape{3, 5, kDim};
    EXPECT_EQ(dense_shape(made.part, kGrid, "value"), shape);
    const Tensor values(DType::kFloat64, shape);
    dense(made.part, kGrid, "value", values.view());
    if (per_head) shape.insert(shape.begin(), kHeads);
    EXPECT_EQ(dense_shape(made.part, kGrid, "key"), shape);
    const Tensor keys(DType::kFloat64, shape);
    dense(made.part, kGrid, "key", keys.view());
    for (int64_t i = 0; i < 3; ++i) {
      for (int64_t j = 0; j < 5; ++j) {
        const int64_t delta = j - (i + 1);
        for (int64_t c = 0; c < kDim; ++c) {
          EXPECT_EQ(values.view().at({i, j, c}),
                    made.part.parameters[1].at({1 - std::clamp<int64_t>(delta, -2, 1), c}));
          for (int64_t h = 0; h < (per_head ? kHeads : 1); ++h) {
            const bool inside = delta >= -2 && delta <= 1;
            const TensorView& table = made.part.parameters[0];
            const double row = !inside    ? 0.0
                               : per_head ? 0.5 * table.at({h, delta + 2, c})
                                          : 0.5 * table.at({delta + 2, c});
            EXPECT_EQ(per_head ? keys.view().at({h, i, j, c}) : keys.view().at({i, j, c}), row);
          }
        }
      }
    }
  }
}

TEST(Dense, StridedOutputOfAnotherDType) {
  const Made made(kBias);
  const Tensor memory(DType::kFloat32, {5, 3, kHeads});
  const TensorView out(memory.view().data, DType::kFloat32, {kHeads, 3, 5},
                       {1, kHeads, 3 * kHeads});
  dense(made.part, kGrid, "key", out);
  EXPECT_EQ(memory.view().at({4, 2, 1}), static_cast<float>(expected_bias(made, 1, 2, 4)));
}

// The dense form is linear in the parameters, so <dout, dense(e)> is the gradient for unit e.
TEST(Dense, BackwardIsTheTranspose) {
  for (const Scheme* s : {&kBias, &kShared, &kPerHead}) {
    for (const char* which : {"key", "value"}) {
      if (s == &kBias && std::string(which) == "value") continue;
      Made made(*s);
      const Tensor dout = numbers(dense_shape(made.part, kGrid, which));
      std::vector<Tensor> gradients;
      std::vector<TensorView> views;
      for (const TensorView& p : made.part.parameters) {
        gradients.push_back(numbers(p.dims()));  // must be overwritten
        views.push_back(gradients.back().view());
      }
      dense_backward(made.part, kGrid, which, dout.view(), views);
      for (const Tensor& p : made.memory) {
        for (int64_t n = 0; n < p.view().numel(); ++n) p.view().store(n, 0.0);
      }
      const Tensor out(DType::kFloat64, dout.view().dims());
      for (size_t p = 0; p < made.memory.size(); ++p) {
        for (int64_t n = 0; n < made.memory[p].view().numel(); ++n) {
          made.memory[p].view().store(n, 1.0);
          dense(made.part, kGrid, which, out.view());
          made.memory[p].view().store(n, 0.0);
          double sum = 0.0;
          for (int64_t e = 0; e < out.view().numel(); ++e) {
            sum += out.view().load(e) * dout.view().load(e);
          }
          EXPECT_NEAR(views[p].load(n), sum, 1e-13) << which << " " << p << " " << n;
        }
      }
    }
  }
}

TEST(Dense, BackwardSkipsWhatIsNotWanted) {
  const Made made(kBias, DType::kFloat32);
  const Tensor dout = numbers({kHeads, 3, 5}), slopes(DType::kFloat32, {2, kHeads});
  dense_backward(made.part, kGrid, "key", dout.view(), {{}, slopes.view()});
  EXPECT_NE(slopes.view().load(0), 0.0);
}

TEST(Dense, EmptyGrids) {
  const Made made(kBias);
  for (const Grid grid : {Grid{0, 5, 0}, Grid{3, 0, 0}, Grid{0, 0, 0}}) {
    const Tensor out(DType::kFloat64, dense_shape(made.part, grid, "key"));
    dense(made.part, grid, "key", out.view());
    const Tensor table = numbers({kHeads, kRows});
    dense_backward(made.part, grid, "key", out.view(), {table.view(), {}});
    EXPECT_EQ(table.view().load(0), 0.0);
  }
}

TEST(Dense, ErrorsSayWhatThePartHas) {
  const Made bias(kBias), shared(kShared), both(kBoth), nothing(kNothing);
  EXPECT_EQ(error([&] { dense_shape(bias.part, kGrid, "value"); }),
            "toy: which='value' needs one value table; this position has 2 distance biases");
  EXPECT_EQ(error([&] { dense_shape(nothing.part, kGrid, "key"); }),
            "toy: which='key' needs biases, sinks or one row table; this position has no term");
  EXPECT_EQ(
      error([&] { dense_shape(both.part, kGrid, "key"); }),
      "toy: which='key' needs biases, sinks or one row table; this position has 2 distance biases, "
      "1 row table");
  EXPECT_EQ(error([&] { dense_shape(bias.part, kGrid, "query"); }),
            "toy: which: expected 'key' or 'value', got 'query'");
  const Part bare = make_part(kBias, {});
  const Tensor out(DType::kFloat64, {kHeads, 3, 5});
  EXPECT_EQ(error([&] { dense(bare, kGrid, "key", out.view()); }),
            "toy: expected 2 parameters, got 0");
  EXPECT_EQ(error([&] { dense(bias.part, {3, 4, 0}, "key", out.view()); }),
            "out: expected [2, 3, 4], got [2, 3, 5]");
  EXPECT_EQ(dense_shape(bare, kGrid, "key"), (std::vector<int64_t>{kHeads, 3, 5}));
}

TEST(Indices, ClassesOrDistances) {
  Part bare;
  const Tensor out(DType::kInt64, {3, 5});
  const auto list = [&] {
    std::vector<int64_t> values;
    for (int64_t n = 0; n < 15; ++n) values.push_back(out.view().load_int(n));
    return values;
  };
  bare = make_part(kShared, {});
  indices(bare, kGrid, out.view());
  EXPECT_EQ(list(), (std::vector<int64_t>{1, 2, 3, -1, -1, 0, 1, 2, 3, -1, -1, 0, 1, 2, 3}));
  bare = make_part(kBias, {});
  indices(bare, kGrid, out.view());
  EXPECT_EQ(list(), (std::vector<int64_t>{1, 2, 3, 3, 3, 0, 1, 2, 3, 3, 0, 0, 1, 2, 3}));
  bare = make_part(kNothing, {});
  const int64_t far = (int64_t{1} << 60) + 1;  // float64 has no room for it
  indices(bare, {3, 5, far}, out.view());
  EXPECT_EQ(list()[0], -far);
  EXPECT_EQ(list()[14], 4 - (far + 2));
}

TEST(Steps, FallBackToDistanceIndexAndDense) {
  const Made bias(kBias), shared(kShared), nothing(kNothing);
  const auto names = [](const std::vector<Step>& road) {
    std::vector<std::string> list;
    for (const Step& step : road) list.push_back(step.name);
    return list;
  };
  const std::vector<Step> road = steps(bias.part, kGrid);
  EXPECT_EQ(names(road), (std::vector<std::string>{"distance", "index", "bias"}));
  EXPECT_EQ(road[0].values[0], -1.0);
  EXPECT_EQ(road[1].values[4], 3.0);
  EXPECT_EQ(road[2].shape, (std::vector<int64_t>{kHeads, 3, 5}));
  EXPECT_DOUBLE_EQ(road[2].values[29], expected_bias(bias, 1, 2, 4));
  EXPECT_EQ(names(steps(shared.part, kGrid)),
            (std::vector<std::string>{"distance", "index", "rows"}));
  EXPECT_EQ(names(steps(nothing.part, kGrid)), (std::vector<std::string>{"distance"}));
}

TEST(MakeGrid, RefusesToGuess) {
  EXPECT_EQ(make_grid(4, 4, std::nullopt).q_offset, 0);
  EXPECT_EQ(make_grid(3, 5, 2).q_offset, 2);
  EXPECT_EQ(make_grid(3, 5, 0).keys, 5);
  EXPECT_EQ(
      error([] { make_grid(3, 5, std::nullopt); }),
      "q_offset: not given, and Lq = 3 differs from Lk = 5. Say where the queries are: "
      "q_offset = Lk - Lq for a KV cache or memory; q_offset = 0 where both start at 0, as in "
      "the notebooks");
  EXPECT_THROW(make_grid(-1, -1, 0), Error);
  EXPECT_THROW(make_grid(1, 1, int64_t{1} << 61), Error);
  EXPECT_THROW(make_grid(int64_t{1} << 62, int64_t{1} << 62, 0), Error);
}

}  // namespace
}  // namespace relpos
