// Small calls of attention, each with its output to six decimals from an independent float64 formula.
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <optional>

#include "relpos/attention.h"
#include "testing/schemes.h"

namespace relpos {
namespace {

constexpr double kLastDigit = 6e-7;

struct Result {
  Tensor out{DType::kFloat64, {1, 1, 3, 2}};
  Tensor lse{DType::kFloat64, {1, 1, 3}};
};

// q = k = [[1, 0], [0, 1], [1, 1]], v = [[1, 2], [3, 4], [5, 6]], scale 1 / sqrt(2).
Result attend(const char* text, const std::vector<std::vector<double>>& parameters, bool causal,
              std::optional<double> scale = {}) {
  std::vector<double> qk = {1, 0, 0, 1, 1, 1}, v = {1, 2, 3, 4, 5, 6};
  Position position = parse_position(text);
  std::vector<std::vector<double>> owned = parameters;
  const std::vector<ParameterSpec>& specs = position.parts[0].specs();
  for (size_t n = 0; n < specs.size(); ++n) {
    if (n >= owned.size()) owned.push_back(specs[n].init.values);
    position.parts[0].parameters.emplace_back(owned[n].data(), DType::kFloat64,
                                              InputSizes{.queries = 3, .keys = 3}.shape(specs[n]));
  }
  Options options;
  options.is_causal = causal;
  options.scale = scale;
  Result result;
  const TensorView queries(qk.data(), DType::kFloat64, {1, 1, 3, 2});
  const TensorView values(v.data(), DType::kFloat64, {1, 1, 3, 2});
  attention(queries, queries, values, position, options, result.out.view(), result.lse.view());
  return result;
}

void expect_rows(const Result& result, const std::vector<double>& golden) {
  for (int64_t n = 0; n < 6; ++n) {
    EXPECT_NEAR(result.out.view().load(n), golden[static_cast<size_t>(n)], kLastDigit) << n;
  }
}

TEST(Golden, LinearBias) {
  const Result result = attend("alibi(heads=1)", {{0.5}}, true);
  expect_rows(result, {1, 2, 2.539573, 3.539573, 4.105893, 5.105893});
  const std::vector<double> lse = {0.707107, 0.968749, 1.806560};
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(result.lse.view().load(i), lse[static_cast<size_t>(i)], kLastDigit);
  }
}

TEST(Golden, Rotation) {
  for (const char* text :
       {"rope(head_dim=2, layout=half)", "rope(head_dim=2, layout=interleaved)"}) {
    expect_rows(attend(text, {}, true), {1, 2, 2.572382, 3.572382, 4.039304, 5.039304});
  }
}

TEST(Golden, RowsForKeysAndValues) {
  const std::vector<double> keys = {0.1, 0.2, 0, 0, -0.1, 0.3}, values = {1, 0, 0, 0, 0, 1};
  expect_rows(attend("shaw(max_distance=1, head_dim=2)", {keys, values}, false),
              {2.942899, 4.524688, 3.679194, 4.917523, 3.901237, 4.351855});
  const std::vector<double> keys_back = {-0.1, 0.3, 0, 0, 0.1, 0.2},
                            values_back = {0, 1, 0, 0, 1, 0};
  expect_rows(attend("shaw(max_distance=1, head_dim=2, distance=query-key)",
                     {keys_back, values_back}, false),
              {2.942899, 4.524688, 3.679194, 4.917523, 3.901237, 4.351855});
}

TEST(Golden, QueriesAndKeysMeetRows) {
  const Result result = attend("deberta(heads=1, head_dim=2, buckets=0, max_distance=2)",
                               {{.1, 0, 0, .1, .2, .1, .3, -.2}, {0, .3, .1, .1, -.2, 0, .1, .2}},
                               false, 1 / std::sqrt(6.0));
  expect_rows(result, {3.123620, 4.123620, 3.350206, 4.350206, 3.254762, 4.254762});
}

TEST(Golden, ForgetGates) {
  const Result result = attend("forgetting", {{-.1, -.2, -.3}}, true);
  expect_rows(result, {1, 2, 2.424816, 3.424816, 3.842305, 4.842305});
}

}  // namespace
}  // namespace relpos
