// Golden numbers and refusals of the rotations beside rope and rope_llama3.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/problem.h"
#include "recipe.h"
#include "schemes/common/testing.h"

namespace relpos {
namespace {

using plain::error_of;
using Given = OptionValues;

Rotation made(const char* scheme, int64_t head_dim, Given own, int64_t length = 0) {
  own.emplace_back("head_dim", head_dim);
  own.emplace_back("layout", "half");
  CallSizes sizes;
  sizes.length = length;
  const std::vector<TensorView> none;
  const Part part = make_part(*find_scheme(scheme), own);
  return part.recipe->bind({sizes, none, {}}).rotations.at(0);
}

double base_of(const Rotation& turn) {
  const auto dims = static_cast<double>(turn.dims);
  return std::pow(turn.frequency[1], -dims / 2.0);
}

std::string refusal(const char* scheme, const Given& own) {
  return error_of([&] { made(scheme, 8, own); });
}

TEST(Rotations, Linear) {
  EXPECT_DOUBLE_EQ(made("rope_linear", 8, {{"factor", 8.0}}).frequency[1], 0.1 / 8);
  EXPECT_NE(refusal("rope_linear", {{"factor", 0.0}}).find("factor"), std::string::npos);
}

TEST(Rotations, BasesOfNtkScaling) {
  EXPECT_NEAR(base_of(made("rope_ntk", 128, {{"factor", 8.0}})), 82684.62, 0.01);
  EXPECT_NEAR(base_of(made("rope_ntk", 128, {{"factor", 4.0}})), 40889.94, 0.01);
  EXPECT_EQ(made("rope_ntk", 2, {{"factor", 4.0}}).frequency[0], 1.0);
}

TEST(Rotations, BasesOfDynamicScaling) {
  const std::pair<int64_t, double> golden[] = {
      {1, 10000.0}, {2048, 10000.0}, {2049, 10009.92}, {4096, 30527.74}, {8192, 72195.86}};
  for (const auto& [length, base] : golden) {
    EXPECT_NEAR(base_of(made("rope_dynamic", 128, {{"factor", 2.0}}, length)), base, 0.01);
    const Given fixed = {{"factor", 2.0}, {"length", length}};
    EXPECT_NEAR(base_of(made("rope_dynamic", 128, fixed, 5)), base, 0.01);
  }
  EXPECT_NE(refusal("rope_dynamic", {{"factor", 0.5}}).find("factor"), std::string::npos);
}

TEST(Rotations, YarnOfLlama2At64k) {
  const Rotation turn = made("rope_yarn", 128, {{"factor", 16.0}});
  EXPECT_NEAR(turn.magnitude, 1.2772588722, 1e-10);
  const std::pair<size_t, double> golden[] = {
      {20, .0562341}, {21, .0469409}, {30, .00852684}, {45, 1.5177e-4}, {63, 7.21739e-6}};
  for (const auto& [pair, w] : golden) EXPECT_NEAR(turn.frequency[pair], w, 4e-5 * w) << pair;
}

TEST(Rotations, YarnOfGptOss) {
  const Rotation turn =
      made("rope_yarn", 64, {{"factor", 32.0}, {"base", 150000.0}, {"truncate", false}});
  EXPECT_NEAR(turn.magnitude, 1.3465735903, 1e-10);
  const std::pair<size_t, double> golden[] = {
      {8, .05081327}, {9, .03170570}, {12, .00679496}, {17, 1.29319e-4}};
  for (const auto& [pair, w] : golden) EXPECT_NEAR(turn.frequency[pair], w, 1e-5 * w) << pair;
}

TEST(Rotations, YarnsMagnitudes) {
  const Given both = {{"factor", 40.0}, {"mscale", 1.0}, {"mscale_all_dim", 1.0}};
  EXPECT_EQ(made("rope_yarn", 64, both).magnitude, 1.0);
  EXPECT_EQ(made("rope_yarn", 64, {{"factor", 4.0}, {"attention_factor", 0.5}}).magnitude, 0.5);
  EXPECT_EQ(made("rope_yarn", 64, {{"factor", 0.5}}).magnitude, 1.0);
  EXPECT_NE(refusal("rope_yarn", {{"beta_fast", 0.5}}).find("beta_fast"), std::string::npos);
}

TEST(Rotations, LongropeIsLongAboveTheOriginalLength) {
  const std::vector<double> near(4, 2.0), far(4, 8.0);
  const Given own = {{"short_factor", near}, {"long_factor", far}, {"factor", 32.0}};
  EXPECT_DOUBLE_EQ(made("rope_longrope", 8, own, 4096).frequency[1], 0.05);
  EXPECT_DOUBLE_EQ(made("rope_longrope", 8, own, 4097).frequency[1], 0.0125);
  for (const int64_t length : {1, 5000}) {
    EXPECT_NEAR(made("rope_longrope", 8, own, length).magnitude, 1.1902380714, 1e-10);
  }
  EXPECT_NE(refusal("rope_longrope", {{"long_factor", std::vector<double>(3, 1.0)}})
                .find("long_factor: expected a number for each of 4 pairs, got 3"),
            std::string::npos);
}

TEST(Rotations, ProportionalTurnsTheFastPairsOfTheWholeHead) {
  const Rotation turn = made("rope_proportional", 8, {{"partial_rotary_factor", 0.5}});
  EXPECT_EQ(turn.dims, 8);
  EXPECT_EQ(turn.frequency, (std::vector<double>{1.0, 0.1, 0.0, 0.0}));
}

TEST(Rotations, ResonanceHasWholeWavelengths) {
  for (const double w : made("rope_resonance", 32, {}).frequency) {
    const double wavelength = 2.0 * std::numbers::pi / w;
    EXPECT_NEAR(wavelength, std::round(wavelength), 1e-9 * wavelength);
  }
}

TEST(Rotations, StartIsATrailingSlice) {
  const Rotation turn = made("rope", 24, {{"start", int64_t{16}}});
  EXPECT_EQ(turn.start, 16);
  EXPECT_EQ(turn.dims, 8);
  EXPECT_NE(refusal("rope", {{"start", int64_t{8}}}).find("start"), std::string::npos);
  EXPECT_NE(refusal("rope", {{"start", int64_t{3}}}).find("head_dim - start"), std::string::npos);
}

TEST(Rotations, AxesOfMrope) {
  const auto axes = [](const Given& own) {
    Given all = own;
    all.emplace_back("head_dim", int64_t{128});
    all.emplace_back("layout", "half");
    const Part part = make_part(*find_scheme("mrope"), all);
    const Tensor queries(DType::kInt64, {1, 3, 2}), keys(DType::kInt64, {1, 3, 2});
    const std::vector<TensorView> inputs{queries.view(), keys.view()};
    return part.recipe->bind({CallSizes{}, inputs, {false, false}}).rotations.at(0).axis;
  };
  const std::vector<int> by_section = axes({});  // 16, 24, 24
  EXPECT_EQ(std::count(by_section.begin(), by_section.begin() + 16, 0), 16);
  EXPECT_EQ(std::count(by_section.begin() + 16, by_section.begin() + 40, 1), 24);
  EXPECT_EQ(std::count(by_section.begin() + 40, by_section.end(), 2), 24);
  const std::vector<int> in_turns =
      axes({{"section", std::vector<double>{24, 20, 20}}, {"interleaved", true}});
  for (size_t p = 0; p < 64; ++p) EXPECT_EQ(in_turns[p], p < 60 ? static_cast<int>(p % 3) : 0);
  EXPECT_NE(error_of([&] { axes({{"section", std::vector<double>{1, 2, 3}}}); }).find("section"),
            std::string::npos);
}

TEST(Rotations, PatchesTurnByRowAndColumn) {
  const Part part = make_part(*find_scheme("rope_axial"), {{"head_dim", int64_t{8}},
                                                           {"layout", "half"},
                                                           {"grid", std::vector<double>{2, 3}},
                                                           {"prefix", int64_t{1}},
                                                           {"origin", int64_t{1}}});
  Positions at;
  at.consecutive = false;
  at.queries = 7;
  for (int64_t token = 0; token < 7; ++token) at.q.push_back(part.recipe->place(token));
  const std::vector<TensorView> none;
  const Rotation turn = part.recipe->bind({CallSizes{}, none, {}, &at}).rotations.at(0);
  EXPECT_EQ(turn.axis, (std::vector<int>{0, 0, 1, 1}));
  EXPECT_EQ(turn.frequency, (std::vector<double>{1.0, 0.01, 1.0, 0.01}));
  const int64_t rows[] = {0, 1, 1, 1, 2, 2, 2}, columns[] = {0, 1, 2, 3, 1, 2, 3};
  for (int64_t token = 0; token < 7; ++token) {
    EXPECT_EQ(turn.coordinates->query(0, 0, token), rows[token]);
    EXPECT_EQ(turn.coordinates->query(1, 0, token), columns[token]);
  }
}

}  // namespace
}  // namespace relpos
