#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "relpos/conventions.h"
#include "testing/schemes.h"

namespace relpos {
namespace {

using plain::error_of;
using Given = std::vector<std::pair<std::string, OptionValue>>;
constexpr double kInf = std::numeric_limits<double>::infinity();

CheckReport checked(const char* scheme, std::vector<double> values, std::vector<int64_t> shape,
                    const Given& given = {}, const char* name = "") {
  return check(*find_scheme(scheme), given, TensorView(values.data(), DType::kFloat64, shape),
               name);
}

CheckReport checked_whole(const char* scheme, std::vector<int64_t> values,
                          std::vector<int64_t> shape, const Given& given = {}) {
  return check(*find_scheme(scheme), given, TensorView(values.data(), DType::kInt64, shape));
}

// The slopes that Press et al. print for 12 heads.
const std::vector<double> kPaper12 = {0.5,
                                      0.25,
                                      0.125,
                                      0.0625,
                                      0.03125,
                                      0.015625,
                                      0.0078125,
                                      0.00390625,
                                      0.7071067811865476,
                                      0.35355339059327379,
                                      0.1767766952966369,
                                      0.08838834764831845};

TEST(Check, FitsOne) {
  const CheckReport report = checked("alibi", kPaper12, {1, 12, 1, 1});
  ASSERT_EQ(report.verdict, Verdict::kFits);
  const Comparison& first = report.comparisons.front();
  EXPECT_EQ(first.outcome, Comparison::Outcome::kFits);
  EXPECT_EQ(first.compared, 12);
  EXPECT_LT(first.largest, 1e-15);
  EXPECT_EQ(first.options, (Given{{"heads", int64_t{12}}, {"slopes", std::string("paper")}}));
}

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

TEST(Check, LearnedValuesAreUndecided) {
  const CheckReport report = checked("t5", std::vector<double>(32 * 6, 0.5), {32, 6});
  EXPECT_EQ(report.verdict, Verdict::kUndecided);
  ASSERT_EQ(report.comparisons.size(), 2);
  for (const Comparison& reading : report.comparisons) {
    EXPECT_EQ(reading.outcome, Comparison::Outcome::kShapeOnly);
    EXPECT_NE(reading.note.find("values cannot tell"), std::string::npos) << reading.note;
  }
}

TEST(Check, IndexMatrices) {
  // Shaw et al., L = 3, k = 2, as the notebooks count and as the paper does.
  const auto order = [](const CheckReport& report) {
    EXPECT_EQ(report.verdict, Verdict::kFits);
    return std::get<std::string>(report.comparisons.front().options.back().second);
  };
  EXPECT_EQ(order(checked_whole("shaw", {2, 1, 0, 3, 2, 1, 4, 3, 2}, {3, 3})), "query-key");
  EXPECT_EQ(order(checked_whole("shaw", {2, 3, 4, 1, 2, 3, 0, 1, 2}, {3, 3})), "key-query");
  // The last row of the notebooks' buckets (6, 20): n = 14 to 0.
  const std::vector<int64_t> last = {5, 5, 5, 5, 4, 4, 4, 4, 4, 3, 3, 3, 2, 1, 0};
  const CheckReport report = checked_whole("t5", last, {1, 15}, {{"buckets", int64_t{6}}});
  ASSERT_EQ(report.verdict, Verdict::kFits);
  EXPECT_EQ(report.comparisons.front().convention,
            "bucket numbers [query, key], q_offset 14, one direction");
}

TEST(Check, Frequencies) {
  const double root = std::sqrt(std::sqrt(500000.0));  // 8 dims: base^(1/4) apart
  const CheckReport report =
      checked("rope", {1, 1 / root, 1 / (root * root), 1 / (root * root * root)}, {4});
  ASSERT_EQ(report.verdict, Verdict::kFits);
  EXPECT_EQ(report.comparisons.front().options,
            (Given{{"head_dim", int64_t{8}}, {"base", 500000.0}}));
}

TEST(Check, GivenOptionsNarrow) {
  EXPECT_EQ(checked("alibi", kPaper12, {12}, {{"slopes", std::string("geometric")}}).verdict,
            Verdict::kNone);
  EXPECT_TRUE(checked("alibi", kPaper12, {12}, {{"heads", int64_t{8}}}).comparisons.empty());
}

TEST(Check, Refusals) {
  EXPECT_NE(error_of([] { checked("alibi", {}, {0}); }).find("tensor: expected elements"),
            std::string::npos);
  EXPECT_NE(error_of([] { checked("alibi", {1}, {1}, {{"head", int64_t{1}}}); }).find("'heads'"),
            std::string::npos);
  EXPECT_NE(error_of([] { check(*find_scheme("t5"), {}, {}); }).find("tensor"), std::string::npos);
  Scheme mute = *find_scheme("t5");
  mute.name = "mute";
  std::vector<double> one = {1};
  EXPECT_NE(error_of([&] {
              check(mute, {}, TensorView(one.data(), DType::kFloat64, {1}));
            }).find("no conventions"),
            std::string::npos);
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
