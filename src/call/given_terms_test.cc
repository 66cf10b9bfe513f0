// The terms whose tensors are all inputs, as C++ calls them: by find_scheme, make_part and views. Against
// the schemes that say the same, against the reference path, and against differences.
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "relpos/relpos.h"
#include "testing/schemes.h"

namespace relpos {
namespace {

using plain::expect_error;

constexpr int64_t kValueHeads = 2, kDim = 8;

// Tensors of one call and of its gradients, drawn by a seed.
struct Call {
  InputSizes sizes;
  DType dtype;
  Position position;
  Options options;
  std::vector<std::vector<int64_t>> shapes;  // of the inputs of the only part

  Call(const char* text, std::vector<std::vector<int64_t>> all, const InputSizes& of_call, DType of)
      : sizes(of_call), dtype(of), position(parse_position(text)), shapes(std::move(all)) {
    const std::vector<int64_t> rows{sizes.batch, sizes.heads, sizes.queries, kDim},
        columns{sizes.batch, kValueHeads, sizes.keys, kDim};
    q = draw(rows), dout = draw(rows);
    k = draw(columns), v = draw(columns);
    out = zeros(rows), dq = out, dk = zeros(columns), dv = dk;
    softmax = Tensor(dtype == DType::kFloat64 ? dtype : DType::kFloat32,
                     {sizes.batch, sizes.heads, sizes.queries, 2});
    options.enable_gqa = true;
    options.q_offset = 3;
    options.threads = 1;
    Part& part = position.parts[0];
    gradients = {dq.view(), dk.view(), dv.view(), {{}}, {}};
    for (size_t n = 0; n < part.specs().size(); ++n) {
      const ParameterSpec& spec = part.specs()[n];
      if (spec.integers()) {
        part.parameters.push_back(memory.emplace_back(integers(spec)).view());
        gradients.parameters[0].emplace_back();
        continue;
      }
      std::vector<int64_t> shape;
      for (const int64_t said : shapes.at(n)) shape.push_back(sizes.size(said));
      part.parameters.push_back(memory.emplace_back(draw(shape)).view());
      gradients.parameters[0].push_back(memory.emplace_back(dtype, shape).view());
    }
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  Tensor zeros(const std::vector<int64_t>& shape) const { return {dtype, shape}; }

  Tensor draw(const std::vector<int64_t>& shape) {
    Tensor made(dtype, shape);
    for (int64_t n = 0; n < made.view().numel(); ++n) {
      made.view().store(n, static_cast<double>(static_cast<float>(normal(random))));
    }
    return made;
  }

  // Maps from distance -3 on, and small coordinates.
  Tensor integers(const ParameterSpec& spec) {
    const std::vector<int64_t> fixed = spec.name == "first"     ? std::vector<int64_t>{-3}
                                       : spec.name == "starts"  ? std::vector<int64_t>{-4, -1, 2}
                                       : spec.name == "classes" ? std::vector<int64_t>{0, 2, -1, 1}
                                                                : std::vector<int64_t>{};
    Tensor made(DType::kInt64,
                fixed.empty() ? sizes.shape(spec) : std::vector<int64_t>{std::ssize(fixed)});
    for (int64_t n = 0; n < made.view().numel(); ++n) {
      made.data<int64_t>()[n] =
          fixed.empty() ? static_cast<int64_t>(random() % 7) : fixed[static_cast<size_t>(n)];
    }
    return made;
  }

  void forward() {
    attention(q.view(), k.view(), v.view(), position, options, out.view(), {}, softmax.view());
  }
  void run() {
    forward();
    attention_backward(q.view(), k.view(), v.view(), out.view(), softmax.view(), dout.view(), {},
                       position, options, gradients);
  }
  // The loss of which `gradients` are the gradients.
  double loss() {
    forward();
    double sum = 0.0;
    for (int64_t n = 0; n < out.view().numel(); ++n) {
      sum += out.view().load(n) * dout.view().load(n);
    }
    return sum;
  }
  // What run() wrote, with a name each.
  std::vector<std::pair<std::string, TensorView>> results() const {
    std::vector<std::pair<std::string, TensorView>> all{
        {"out", out.view()}, {"dq", dq.view()}, {"dk", dk.view()}, {"dv", dv.view()}};
    for (size_t n = 0; n < gradients.parameters[0].size(); ++n) {
      const TensorView& view = gradients.parameters[0][n];
      if (view.given()) all.emplace_back("d" + position.parts[0].specs()[n].name, view);
    }
    return all;
  }

  Tensor q, k, v, dout, out, softmax, dq, dk, dv;
  Gradients gradients;
  std::deque<Tensor> memory;

 private:
  std::mt19937_64 random{11};
  std::normal_distribution<double> normal;
};

struct Case {
  const char* text;
  std::vector<std::vector<int64_t>> shapes;
};

// A heads axis is kHeads, a row's rank kDim or 3 where a factor meets it.
const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      {"distance_bias", {{kHeads, 6}}},
      {"distance_bias(map=window, reversed=true)", {{1, 6}}},
      {"distance_bias(map=runs)", {{kHeads, 3}}},
      {"distance_bias(along=true)", {{kHeads, 6}}},
      {"distance_bias(grid=[3, 5])", {{kHeads, 40}}},
      {"slopes", {{kHeads}, {kHeads}}},
      {"slopes(future=symmetric)", {{kHeads}}},
      {"row_table", {{6, kDim}}},
      {"row_table(map=runs, by_head=true)", {{kHeads, 3, kDim}}},
      {"row_table(map=window, reversed=true, by_head=true, factor=true, added=true, scale=0.5)",
       {{kHeads, 6, 3}, {kBatch, kHeads, kQueries, 3}, {kHeads, 3}}},
      {"row_table(along=true)", {{6, kDim}}},
      {"column_table", {{6, kDim}}},
      {"column_table(by_head=true, factor=true, scale=-0.7)",
       {{kHeads, 6, 3}, {kBatch, kValueHeads, kKeys, 3}}},
      {"value_table", {{6, kDim}}},
      {"value_table(map=runs, by_head=true)", {{kHeads, 3, kDim}}},
      {"key_bias", {{kHeads, kKeys}}},
      {"key_bias(by_row=true)", {{kBatch, kHeads, kKeys}}},
      {"query_added", {{kHeads, kDim}}},
      {"turn(dims=6, layout=half)", {{1, kValueHeads, 3}}},
      {"turn(dims=4, layout=interleaved, start=2, magnitude=0.9)", {{1, 1, 2}}},
  };
  return all;
}

TEST(GivenTerms, EveryTermHasACase) {
  for (const Scheme& scheme : term_schemes()) {
    if (scheme.name.starts_with("pair_")) continue;  // of bytes; random_terms.h draws such terms
    bool tried = false;
    for (const Case& c : cases()) {
      tried = tried || &parse_position(c.text).parts[0].scheme() == &scheme;
    }
    EXPECT_TRUE(tried) << scheme.name;
    EXPECT_EQ(find_scheme(scheme.name), &scheme);
  }
}

TEST(GivenTerms, FusedIsReference) {
  const InputSizes sizes{.batch = 2, .heads = 4, .queries = 37, .keys = 101};
  for (const Case& c : cases()) {
    for (const bool causal : {false, true}) {
      SCOPED_TRACE(std::string(c.text) + (causal ? ", causal" : ""));
      Call fused(c.text, c.shapes, sizes, DType::kFloat32);
      Call reference(c.text, c.shapes, sizes, DType::kFloat64);
      fused.options.path = Path::kFused;
      reference.options.path = Path::kReference;
      for (Call* call : {&fused, &reference}) {
        call->options.is_causal = causal;
        call->run();
      }
      const auto got = fused.results(), want = reference.results();
      for (size_t n = 0; n < want.size(); ++n) {
        double largest = 1.0;
        for (int64_t i = 0; i < want[n].second.numel(); ++i) {
          largest = std::max(largest, std::fabs(want[n].second.load(i)));
        }
        for (int64_t i = 0; i < want[n].second.numel(); ++i) {
          ASSERT_NEAR(got[n].second.load(i), want[n].second.load(i), 3e-5 * largest)
              << want[n].first << " " << i;
        }
      }
    }
  }
}

TEST(GivenTerms, GradientsAreDifferences) {
  const InputSizes sizes{.batch = 2, .heads = 4, .queries = 3, .keys = 5};
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.text);
    Call call(c.text, c.shapes, sizes, DType::kFloat64);
    call.options.path = Path::kReference;
    call.run();
    const std::vector<TensorView>& inputs = call.position.parts[0].parameters;
    for (size_t n = 0; n < inputs.size(); ++n) {
      const TensorView& gradient = call.gradients.parameters[0][n];
      if (!gradient.given()) continue;
      const int64_t every = 1 + inputs[n].numel() / 40;
      for (int64_t i = 0; i < inputs[n].numel(); i += every) {
        constexpr double kStep = 1e-5;
        const double held = inputs[n].load(i);
        inputs[n].store(i, held + kStep);
        const double above = call.loss();
        inputs[n].store(i, held - kStep);
        const double below = call.loss();
        inputs[n].store(i, held);
        ASSERT_NEAR(gradient.load(i), (above - below) / (2 * kStep),
                    1e-7 * (1.0 + std::fabs(gradient.load(i))))
            << call.position.parts[0].specs()[n].name << " " << i;
      }
    }
  }
}

// The bits of all results of two calls.
void expect_same_bits(const Call& a, const Call& b) {
  const auto of_a = a.results(), of_b = b.results();
  ASSERT_EQ(of_a.size(), of_b.size());
  for (size_t n = 0; n < of_a.size(); ++n) {
    const TensorView &x = of_a[n].second, &y = of_b[n].second;
    ASSERT_EQ(x.numel(), y.numel());
    ASSERT_GT(x.numel(), 0);
    for (int64_t i = 0; i < x.numel(); ++i) {
      ASSERT_EQ(x.load(i), y.load(i)) << of_a[n].first << ", " << of_b[n].first << " " << i;
    }
  }
}

// A built-in scheme, and a sum of terms that says the same of the same tensors.
class SameBits : public testing::TestWithParam<std::pair<DType, Path>> {
 protected:
  static constexpr InputSizes kSizes{.batch = 2, .heads = 4, .queries = 67, .keys = 301};

  void run(Call& call) {
    call.options.path = GetParam().second;
    call.options.is_causal = true;
    call.options.q_offset = 234;
    call.run();
  }
  // `call` with terms instead: each a text, the tensor that it shares, and its class map.
  void replace(Call& call, std::vector<Part> parts, const std::vector<TensorView>& tables,
               const std::vector<TensorView>& gradients, const std::vector<TensorView>& map) {
    call.position.parts = std::move(parts);
    call.gradients.parameters.assign(call.position.parts.size(), {});
    for (size_t n = 0; n < tables.size(); ++n) {
      call.position.parts[n].parameters = {tables[n]};
      call.gradients.parameters[n] = {gradients[n]};
      for (const TensorView& numbers : map) {
        call.position.parts[n].parameters.push_back(numbers);
        call.gradients.parameters[n].emplace_back();
      }
    }
  }
};

Part made(const char* name, const OptionValues& options = {}) {
  return make_part(*find_scheme(name), options);
}

TensorView turned(TensorView view) {
  std::swap(view.shape[0], view.shape[1]);
  std::swap(view.strides[0], view.strides[1]);
  return view;
}

TEST_P(SameBits, RunsAreT5) {
  Call t5("t5(heads=4)", {{32, 4}}, kSizes, GetParam().first);
  Call own("t5(heads=4)", {{32, 4}}, kSizes, GetParam().first);
  constexpr int64_t kReach = 200;
  std::vector<int64_t> row(2 * kReach + 1), starts, classes;
  indices(t5.position.parts[0], {1, 2 * kReach + 1, kReach},
          TensorView(row.data(), DType::kInt64, {1, 2 * kReach + 1}));
  classes.push_back(row[0]);
  for (int64_t n = 1; n <= 2 * kReach; ++n) {
    if (row[static_cast<size_t>(n)] == row[static_cast<size_t>(n) - 1]) continue;
    starts.push_back(n - kReach);
    classes.push_back(row[static_cast<size_t>(n)]);
  }
  const TensorView weight = own.position.parts[0].parameters[0],
                   dweight = own.gradients.parameters[0][0];
  replace(own, {made("distance_bias", {{"map", "runs"}})}, {turned(weight)}, {turned(dweight)},
          {{starts.data(), DType::kInt64, {std::ssize(starts)}},
           {classes.data(), DType::kInt64, {std::ssize(classes)}}});
  run(t5);
  run(own);
  expect_same_bits(t5, own);
  // The gradient of the whole weight, in its own order.
  for (int64_t n = 0; n < weight.numel(); ++n) {
    ASSERT_EQ(dweight.load(n), t5.gradients.parameters[0][0].load(n));
  }
}

TEST_P(SameBits, RowsAndValuesAreShaw) {
  const char* text = "shaw(max_distance=9, head_dim=8)";
  const std::vector<std::vector<int64_t>> shapes{{19, kDim}, {19, kDim}};
  Call shaw(text, shapes, kSizes, GetParam().first), own(text, shapes, kSizes, GetParam().first);
  const std::vector<TensorView> tables = own.position.parts[0].parameters,
                                gradients = own.gradients.parameters[0];
  int64_t first = -9;
  replace(own, {made("row_table"), made("value_table")}, tables, gradients,
          {{&first, DType::kInt64, {1}}});
  run(shaw);
  run(own);
  for (size_t n = 0; n < 2; ++n) {
    for (int64_t i = 0; i < gradients[n].numel(); ++i) {
      ASSERT_EQ(gradients[n].load(i), shaw.gradients.parameters[0][n].load(i)) << n << " " << i;
    }
  }
  for (const auto& [a, b] : {std::pair{&shaw.out, &own.out}, std::pair{&shaw.dq, &own.dq},
                             std::pair{&shaw.dk, &own.dk}, std::pair{&shaw.dv, &own.dv}}) {
    for (int64_t i = 0; i < a->view().numel(); ++i) ASSERT_EQ(a->view().load(i), b->view().load(i));
  }
}

INSTANTIATE_TEST_SUITE_P(Of, SameBits,
                         testing::Values(std::pair{DType::kFloat32, Path::kFused},
                                         std::pair{DType::kFloat32, Path::kReference},
                                         std::pair{DType::kFloat64, Path::kReference},
                                         std::pair{DType::kBFloat16, Path::kAuto}));

TEST(GivenTerms, Refusals) {
  const InputSizes sizes{.batch = 2, .heads = 4, .queries = 3, .keys = 5};
  const auto refusal = [&](const char* text, std::vector<std::vector<int64_t>> shapes,
                           const char* words) {
    SCOPED_TRACE(text);
    expect_error([&] { Call(text, std::move(shapes), sizes, DType::kFloat32).forward(); }, words);
  };
  refusal("distance_bias", {{4, 6, 1}}, "distance_bias: table: expected [any, any], got [4, 6, 1]");
  refusal("distance_bias", {{3, 6}}, "distance_bias: its bias table is [3, 6]");
  refusal("distance_bias(map=runs)", {{4, 2}},
          "its bias table is [4, 2] ([heads, classes]) but query has 4 heads, and distances have 3 "
          "classes");
  refusal("slopes", {{4}, {3}}, "slopes: future: expected [4], got [3]");
  refusal("row_table", {{6, 7}}, "row_table: table: expected [any, 8], got [6, 7]");
  refusal("row_table(by_head=true)", {{2, 6, 8}}, "needs [6, 8] or [4, 6, 8]");
  refusal("row_table(factor=true)", {{6, 3}, {2, 4, 5, 3}},
          "row_table: factor: expected [2, 4, 3, any], got [2, 4, 5, 3]");
  refusal("row_table(added=true)", {{6, 8}, {4, 7}},
          "row_table: added: expected [4, 8], got [4, 7]");
  refusal("column_table(factor=true)", {{6, 3}, {2, 4, 5, 3}},
          "column_table: column factor: expected [2, 2, 5, 3] for this call, got [2, 4, 5, 3]");
  refusal("value_table", {{6, 9}}, "value_table: a table has shape [6, 9]");
  refusal("key_bias", {{4, 6}}, "key_bias: values: expected [any, 5], got [4, 6]");
  refusal("key_bias", {{1, 5}}, "key_bias: key bias: expected [4, 5] for this call, got [1, 5]");
  refusal("query_added", {{4, 7}}, "query_added: added: expected [any, 8], got [4, 7]");
  refusal("turn(dims=6, layout=half)", {{1, 2, 4}}, "frequency: expected [1, any, 3]");
  refusal("turn(dims=6, layout=half)", {{1, 3, 3}}, "frequencies [axes, 2 or 1, 3]");
  refusal("turn(dims=10, layout=half)", {{1, 1, 5}}, "rotates dims 0 to 10");
  expect_error([] { parse_position("distance_bais"); }, "did you mean 'distance_bias'?");
}

// Numbers of the map: of another type, and numbers that make no map.
TEST(GivenTerms, RefusalsOfMaps) {
  const InputSizes sizes{.batch = 2, .heads = 4, .queries = 3, .keys = 5};
  const auto refusal = [&](const char* text, const std::vector<TensorView>& map,
                           const char* words) {
    SCOPED_TRACE(words);
    Call call(text, {{4, 6}}, sizes, DType::kFloat32);
    call.position.parts[0].parameters.resize(1);
    call.position.parts[0].parameters.insert(call.position.parts[0].parameters.end(), map.begin(),
                                             map.end());
    expect_error([&] { call.forward(); }, words);
  };
  const char *clamp = "distance_bias(map=clamp)", *runs = "distance_bias(map=runs)";
  std::vector<int64_t> far{int64_t{1} << 50}, starts{2, -1}, classes{0, 1, 2}, negative{0, -2, 1};
  float real = 1.0F;
  const auto of = [](std::vector<int64_t>& numbers) {
    return TensorView(numbers.data(), DType::kInt64, {std::ssize(numbers)});
  };
  refusal(clamp, {}, "distance_bias: first: missing; it is an input of each call");
  refusal(clamp, {TensorView(&real, DType::kFloat32, {1})}, "first: expected int64, got float32");
  refusal(clamp, {of(starts)}, "distance_bias: first: expected [1], got [2]");
  refusal(clamp, {of(far)}, "first: expected a distance below 2^48");
  refusal(runs, {of(starts)}, "distance_bias: classes: missing");
  refusal(runs, {of(starts), of(starts)}, "classes: expected 3, one more than starts, got 2");
  refusal(runs, {of(starts), of(classes)}, "starts must not decrease");
  starts = {-1, 2};
  refusal(runs, {of(starts), of(negative)},
          "expected classes of 0 or more, or -1 for none, got -2");
}

}  // namespace
}  // namespace relpos
