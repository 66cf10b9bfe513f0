#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "relpos/conventions.h"
#include "schemes/common/slopes.h"
#include "testing/schemes.h"

namespace relpos {
namespace {

using plain::expect_error;
using Given = std::vector<std::pair<std::string, OptionValue>>;
constexpr double kInf = std::numeric_limits<double>::infinity();

CheckReport checked(const char* scheme, std::vector<double> values, std::vector<int64_t> shape,
                    const Given& given = {}) {
  return check(*find_scheme(scheme), given, TensorView(values.data(), DType::kFloat64, shape));
}

// The slopes that Press et al. print for 12 heads.
const std::vector<double> kPaper12 = common::paper_slopes(12);

TEST(Check, NoneSaysWhereItDiffers) {
  std::vector<double> slopes = kPaper12;
  slopes[9] *= 1.00001;
  const CheckReport report = checked("alibi", slopes, {1, 12, 1, 1});
  ASSERT_EQ(report.verdict, Verdict::kNone);
  const Comparison& closest = report.comparisons.front();
  EXPECT_EQ(closest.convention, "slopes, the paper's rule");
  EXPECT_EQ(closest.index, (std::vector<int64_t>{0, 9, 0, 0}));
  EXPECT_EQ(closest.compared, 10);
  EXPECT_NEAR(closest.expected, 0.35355339059327379, 1e-15);
  EXPECT_EQ(closest.found, slopes[9]);
  for (const Comparison& other : report.comparisons) EXPECT_LE(other.compared, closest.compared);
  EXPECT_EQ(checked("alibi", kPaper12, {12}, {{"slopes", std::string("geometric")}}).verdict,
            Verdict::kNone);
}

TEST(Check, RoundingOfTheDtypeIsAllowedAndNoMore) {
  Tensor slopes(DType::kBFloat16, {12});
  for (int64_t h = 0; h < 12; ++h) slopes.view().store(h, kPaper12[static_cast<size_t>(h)]);
  const Scheme& alibi = *find_scheme("alibi");
  EXPECT_EQ(check(alibi, {}, slopes.view()).verdict, Verdict::kFits);
  slopes.view().store(9, 0.36);
  EXPECT_EQ(check(alibi, {}, slopes.view()).verdict, Verdict::kNone);
}

TEST(Check, MaskedElementsAreNotCompared) {
  // slopes 1/16 and 1/256 of two heads; the future masked.
  std::vector<double> bias = {0, -kInf, -0.0625, 0, 0, -kInf, -0.00390625, 0};
  const CheckReport report = checked("alibi", bias, {2, 2, 2});
  EXPECT_EQ(report.verdict, Verdict::kAmbiguous);  // symmetric, one-sided, linear
  EXPECT_EQ(report.comparisons.front().compared, 6);
  const CheckReport told = checked("alibi", bias, {2, 2, 2}, {{"symmetric", true}});
  EXPECT_EQ(told.comparisons.front().outcome, Comparison::Outcome::kFits);
  bias[2] = std::nan("");
  EXPECT_EQ(checked("alibi", bias, {2, 2, 2}).verdict, Verdict::kNone);
  EXPECT_EQ(checked("alibi", std::vector<double>(8, -kInf), {2, 2, 2}).verdict,
            Verdict::kUndecided);
}

TEST(Check, Refusals) {
  expect_error([] { checked("alibi", {}, {0}); }, "tensor: expected elements");
  expect_error([] { checked("alibi", {1}, {1}, {{"head", int64_t{1}}}); }, "'heads'");
  expect_error([] { check(*find_scheme("t5"), {}, {}); }, "tensor");
  Scheme mute = *find_scheme("t5");
  mute.name = "mute";
  const Tensor one(DType::kFloat64, {1});
  expect_error([&] { check(mute, {}, one.view()); }, "no conventions");
}

TEST(Check, Names) {
  const Scheme& t5 = *find_scheme("t5");
  EXPECT_TRUE(is_held_as(t5, "relative_attention_bias.weight"));
  EXPECT_TRUE(
      is_held_as(t5, "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"));
  EXPECT_TRUE(is_held_as(t5, "decoder/relpos_bias/rel_embedding"));
  EXPECT_FALSE(is_held_as(t5, "my_rel_embedding"));
  EXPECT_FALSE(is_held_as(t5, "relative_attention_bias.weight.scale"));
}

// Every origin's name of a parameter is looked for; plain "embedding.weight" is anybody's.
TEST(Check, OriginsAreLookedFor) {
  for (const auto& [text, count] : std::vector<std::pair<const char*, int>>{
           {"t5(heads=2)", 5},
           {"shaw(max_distance=2, head_dim=4)", 2},
           {"shaw(max_distance=2, head_dim=4, distance=query-key)", 3},
           {"music_transformer(max_length=4, head_dim=4)", 1}}) {
    const Position position = parse_position(text);
    int found = 0;
    for (const ParameterSpec& spec : position.parts[0].specs()) {
      EXPECT_TRUE(is_held_as(position.parts[0].scheme(), spec.name)) << spec.name;
      for (const Origin& origin : spec.origins) {
        ++found;
        EXPECT_NE(is_held_as(position.parts[0].scheme(), origin.name),
                  origin.name == "embedding.weight")
            << origin.name;
      }
    }
    EXPECT_EQ(found, count) << text;
  }
}

}  // namespace
}  // namespace relpos
