// Small calls of attention, each with its output to six decimals from an independent float64 formula.
#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "relpos/attention.h"
#include "testing/schemes.h"

namespace relpos {
namespace {

constexpr double kLastDigit = 6e-7;

struct Call {
  const char* text;
  std::vector<std::vector<double>> parameters;
  bool causal;
  std::vector<double> out, lse{};
  std::optional<double> scale{};
};

// q = k = [[1, 0], [0, 1], [1, 1]], v = [[1, 2], [3, 4], [5, 6]], scale 1 / sqrt(2) unless given.
TEST(Golden, Attention) {
  const std::vector<double> turned = {1, 2, 2.572382, 3.572382, 4.039304, 5.039304};
  const std::vector<double> by_rows = {2.942899, 4.524688, 3.679194, 4.917523, 3.901237, 4.351855};
  const Call calls[] = {
      {"alibi(heads=1)",
       {{0.5}},
       true,
       {1, 2, 2.539573, 3.539573, 4.105893, 5.105893},
       {0.707107, 0.968749, 1.806560}},
      {"rope(head_dim=2, layout=half)", {}, true, turned},
      {"rope(head_dim=2, layout=interleaved)", {}, true, turned},
      {"shaw(max_distance=1, head_dim=2)",
       {{.1, .2, 0, 0, -.1, .3}, {1, 0, 0, 0, 0, 1}},
       false,
       by_rows},
      {"shaw(max_distance=1, head_dim=2, distance=query-key)",
       {{-.1, .3, 0, 0, .1, .2}, {0, 1, 0, 0, 1, 0}},
       false,
       by_rows},
      {"deberta(heads=1, head_dim=2, buckets=0, max_distance=2)",
       {{.1, 0, 0, .1, .2, .1, .3, -.2}, {0, .3, .1, .1, -.2, 0, .1, .2}},
       false,
       {3.123620, 4.123620, 3.350206, 4.350206, 3.254762, 4.254762},
       {},
       1 / std::sqrt(6.0)},
      {"forgetting", {{-.1, -.2, -.3}}, true, {1, 2, 2.424816, 3.424816, 3.842305, 4.842305}},
  };
  std::vector<double> qk = {1, 0, 0, 1, 1, 1}, v = {1, 2, 3, 4, 5, 6};
  const TensorView queries(qk.data(), DType::kFloat64, {1, 1, 3, 2});
  const TensorView values(v.data(), DType::kFloat64, {1, 1, 3, 2});
  for (const Call& call : calls) {
    SCOPED_TRACE(call.text);
    const plain::Made made(call.text, call.parameters, {.queries = 3, .keys = 3});
    Options options;
    options.is_causal = call.causal;
    options.scale = call.scale;
    const Tensor out(DType::kFloat64, {1, 1, 3, 2}), lse(DType::kFloat64, {1, 1, 3});
    attention(queries, queries, values, made.position, options, out.view(), lse.view());
    for (size_t n = 0; n < 6; ++n) EXPECT_NEAR(out.data<double>()[n], call.out[n], kLastDigit) << n;
    for (size_t i = 0; i < call.lse.size(); ++i) {
      EXPECT_NEAR(lse.data<double>()[i], call.lse[i], kLastDigit) << i;
    }
  }
}

}  // namespace
}  // namespace relpos
