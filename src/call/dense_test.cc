// Dense forms against formulas written pair by pair; the schemes here exist in this test only.
#include "relpos/dense.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "testing/schemes.h"

namespace relpos {
namespace {

using plain::error_of;

constexpr int64_t kHeads = 2, kRows = 4, kDim = 3;
const Grid kGrid{3, 5, 1};

// A bias with a table (clamped to [-2, 1]) and slopes, each with a multiplier.
void bias_terms(Builder& b) {
  b.bias(ClassMap::clamp(-2, 1),
         2.0 * b.parameter("table", {kHeads, kRows}, Init::constant(0), ""));
  const Source slopes = b.parameter("slopes", {2, kHeads}, Init::constant(1), "");
  b.slopes(3.0 * slopes[0], 3.0 * slopes[1]);
}

// Rows for keys, none outside [-2, 1].
void row_terms(Builder& b) {
  b.rows(ClassMap::zero_outside(-2, 1),
         0.5 * b.parameter("keys", {kRows, kDim}, Init::normal(1), ""));
}

void both_terms(Builder& b) {
  bias_terms(b);
  row_terms(b);
}

void no_terms(Builder&) {}

Tensor numbers(std::vector<int64_t> shape, DType dtype = DType::kFloat64) {
  Tensor tensor(dtype, std::move(shape));
  for (int64_t n = 0; n < tensor.view().numel(); ++n) {
    tensor.view().store(n, std::sin(1.0 + 0.7 * static_cast<double>(n)));
  }
  return tensor;
}

// A part with its parameters' memory.
struct Held {
  Part part;
  std::vector<Tensor> memory;

  explicit Held(Part toy, DType dtype = DType::kFloat64) : part(std::move(toy)) {
    for (const ParameterSpec& spec : part.specs()) {
      part.parameters.push_back(memory.emplace_back(numbers(spec.shape, dtype)).view());
    }
  }
};

struct Biased : Held {
  explicit Biased(DType dtype = DType::kFloat64) : Held(plain::toy<bias_terms>(), dtype) {}
};

double expected_bias(const Biased& made, int64_t h, int64_t i, int64_t j) {
  const int64_t delta = j - (i + kGrid.q_offset);
  const int64_t row = std::clamp<int64_t>(delta, -2, 1) + 2;
  const double slope = made.part.parameters[1].at({delta < 0 ? 0 : 1, h});
  return 2.0 * made.part.parameters[0].at({h, row}) + 3.0 * slope * static_cast<double>(delta);
}

TEST(Dense, RowsTimesTheirMultiplier) {
  const Held made(plain::toy<row_terms>());
  EXPECT_EQ(dense_shape(made.part, kGrid, "key"), (std::vector<int64_t>{3, 5, kDim}));
  const Tensor out(DType::kFloat64, {3, 5, kDim});
  dense(made.part, kGrid, "key", out.view());
  for (int64_t n = 0; n < 3 * 5 * kDim; ++n) {
    const int64_t delta = n / kDim % 5 - (n / kDim / 5 + kGrid.q_offset), c = n % kDim;
    const bool inside = delta >= -2 && delta <= 1;
    EXPECT_EQ(out.view().load(n), inside ? 0.5 * made.memory[0].view().at({delta + 2, c}) : 0.0);
  }
}

TEST(Dense, StridedOutputOfAnotherDType) {
  const Biased made;
  const Tensor memory(DType::kFloat32, {5, 3, kHeads});
  const TensorView out(memory.view().data, DType::kFloat32, {kHeads, 3, 5},
                       {1, kHeads, 3 * kHeads});
  dense(made.part, kGrid, "key", out);
  EXPECT_EQ(memory.view().at({4, 2, 1}), static_cast<float>(expected_bias(made, 1, 2, 4)));
}

// The dense form is linear in the parameters, so <dout, dense(e)> is the gradient for unit e.
TEST(Dense, BackwardIsTheTranspose) {
  for (const Held& made : {Held(plain::toy<bias_terms>()), Held(plain::toy<row_terms>())}) {
    const Tensor dout = numbers(dense_shape(made.part, kGrid, "key"));
    std::vector<Tensor> gradients;
    std::vector<TensorView> views;
    for (const TensorView& p : made.part.parameters) {
      views.push_back(gradients.emplace_back(numbers(p.dims())).view());  // to be overwritten
    }
    dense_backward(made.part, kGrid, "key", dout.view(), views);
    for (const TensorView& p : made.part.parameters) {
      for (int64_t n = 0; n < p.numel(); ++n) p.store(n, 0.0);
    }
    const Tensor out(DType::kFloat64, dout.view().dims());
    for (size_t p = 0; p < views.size(); ++p) {
      for (int64_t n = 0; n < views[p].numel(); ++n) {
        made.part.parameters[p].store(n, 1.0);
        dense(made.part, kGrid, "key", out.view());
        made.part.parameters[p].store(n, 0.0);
        double sum = 0.0;
        for (int64_t e = 0; e < out.view().numel(); ++e) {
          sum += out.view().load(e) * dout.view().load(e);
        }
        EXPECT_NEAR(views[p].load(n), sum, 1e-13) << p << " " << n;
      }
    }
  }
}

TEST(Dense, BackwardSkipsWhatIsNotWanted) {
  const Biased made(DType::kFloat32);
  const Tensor dout = numbers({kHeads, 3, 5}), slopes(DType::kFloat32, {2, kHeads});
  dense_backward(made.part, kGrid, "key", dout.view(), {{}, slopes.view()});
  EXPECT_NE(slopes.view().load(0), 0.0);
}

TEST(Dense, EmptyGrids) {
  const Biased made;
  for (const Grid grid : {Grid{0, 5, 0}, Grid{3, 0, 0}, Grid{0, 0, 0}}) {
    const Tensor out(DType::kFloat64, dense_shape(made.part, grid, "key"));
    dense(made.part, grid, "key", out.view());
    const Tensor table = numbers({kHeads, kRows});
    dense_backward(made.part, grid, "key", out.view(), {table.view(), {}});
    EXPECT_EQ(table.view().load(0), 0.0);
  }
}

TEST(Dense, ErrorsSayWhatThePartHas) {
  const Biased bias;
  const Part both = plain::toy<both_terms>(), nothing = plain::toy<no_terms>(),
             bare = plain::toy<bias_terms>();
  const Tensor out(DType::kFloat64, {kHeads, 3, 5});
  const auto shape = [](const Part& part, const char* which) {
    return error_of([&] { dense_shape(part, kGrid, which); });
  };
  EXPECT_EQ(shape(bias.part, "value"),
            "toy: which='value' needs one value table; this position has 2 distance biases");
  EXPECT_EQ(shape(nothing, "key"),
            "toy: which='key' needs biases, sinks or one row table; this position has no term");
  EXPECT_EQ(shape(both, "key"),
            "toy: which='key' needs biases, sinks or one row table; this position has 2 distance "
            "biases, 1 row table");
  EXPECT_EQ(shape(bias.part, "query"), "toy: which: expected 'key' or 'value', got 'query'");
  EXPECT_EQ(error_of([&] { dense(bare, kGrid, "key", out.view()); }),
            "toy: expected 2 parameters, got 0");
  EXPECT_EQ(error_of([&] { dense(bias.part, {3, 4, 0}, "key", out.view()); }),
            "out: expected [2, 3, 4], got [2, 3, 5]");
  EXPECT_EQ(dense_shape(bare, kGrid, "key"), (std::vector<int64_t>{kHeads, 3, 5}));
}

TEST(Indices, ClassesOrDistances) {
  const auto list = [](const Part& bare, const Grid& grid) {
    const Tensor out(DType::kInt64, {3, 5});
    indices(bare, grid, out.view());
    return std::vector<int64_t>(out.data<int64_t>(), out.data<int64_t>() + 15);
  };
  EXPECT_EQ(list(plain::toy<row_terms>(), kGrid),
            (std::vector<int64_t>{1, 2, 3, -1, -1, 0, 1, 2, 3, -1, -1, 0, 1, 2, 3}));
  EXPECT_EQ(list(plain::toy<bias_terms>(), kGrid),
            (std::vector<int64_t>{1, 2, 3, 3, 3, 0, 1, 2, 3, 3, 0, 0, 1, 2, 3}));
  const int64_t far = (int64_t{1} << 60) + 1;  // float64 has no room for it
  const std::vector<int64_t> distances = list(plain::toy<no_terms>(), {3, 5, far});
  EXPECT_EQ(distances[0], -far);
  EXPECT_EQ(distances[14], 4 - (far + 2));
}

TEST(Steps, FallBackToDistanceIndexAndDense) {
  const Biased bias;
  const plain::Made rows({{plain::toy<row_terms>()}});
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
  EXPECT_EQ(names(steps(rows.part(), kGrid)),
            (std::vector<std::string>{"distance", "index", "rows"}));
  EXPECT_EQ(names(steps(plain::toy<no_terms>(), kGrid)), (std::vector<std::string>{"distance"}));
}

TEST(MakeGrid, RefusesToGuess) {
  EXPECT_EQ(make_grid(4, 4, std::nullopt).q_offset, 0);
  EXPECT_EQ(make_grid(3, 5, 2).q_offset, 2);
  EXPECT_EQ(make_grid(3, 5, 0).keys, 5);
  EXPECT_EQ(
      error_of([] { make_grid(3, 5, std::nullopt); }),
      "q_offset: not given, and Lq = 3 differs from Lk = 5. Say where the queries are: "
      "q_offset = Lk - Lq for a KV cache or memory; q_offset = 0 where both start at 0, as in "
      "the notebooks");
  EXPECT_THROW(make_grid(-1, -1, 0), Error);
  EXPECT_THROW(make_grid(1, 1, int64_t{1} << 61), Error);
  EXPECT_THROW(make_grid(int64_t{1} << 62, int64_t{1} << 62, 0), Error);
}

}  // namespace
}  // namespace relpos
