// Golden numbers and refusals of the rotations beside rope and rope_llama3.
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "binding/recipe.h"
#include "kernels/problem.h"
#include "testing/schemes.h"

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

}  // namespace
}  // namespace relpos
