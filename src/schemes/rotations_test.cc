// Golden numbers of rotations: frequencies, bases, magnitudes and a vector that is turned.
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "relpos/dense.h"
#include "testing/schemes.h"

namespace relpos {
namespace {

// The rotation of a scheme in a call of this length, in layout half.
Rotation turn_of(const std::string& scheme, const std::string& options, int64_t length = 0) {
  return plain::Made(scheme + "(layout=half, " + options + ")")
      .bind({.length = length})
      .rotations.at(0);
}

std::vector<double> frequencies_of(const Rotation& turn) {
  if (const auto* axes = turn.by<Rotation::ByCoordinates>()) return axes->frequency;
  return turn.by<Rotation::ByPosition>()->frequency;
}

struct Frequencies {
  const char *scheme, *options;
  double precision;  // the numbers of others are float32, and have a few digits
  std::vector<std::pair<size_t, double>> golden;
  double magnitude = 1.0;
  int64_t length = 0;
};

TEST(Golden, Frequencies) {
  const char* longrope =
      "head_dim=8, short_factor=[2, 2, 2, 2], long_factor=[8, 8, 8, 8], factor=32";
  const Frequencies rows[] = {
      // Llama 3.1 and 3.2, as the published code computes them in float32.
      {"rope_llama3",
       "head_dim=128",
       4e-7,
       {{0, 1.0},
        {28, .00321144611},
        {29, .00216657063},
        {30, .00137189368},
        {31, .00085675146},
        {32, .000524846022},
        {33, .00031269365},
        {34, .000178507791},
        {35, 9.55621217e-05},
        {63, 3.06892588e-07}}},
      {"rope_llama3",
       "head_dim=64, factor=32",
       4e-7,
       {{15, .00129054801}, {16, .000429556705}, {17, 9.70828623e-05}}},
      // Llama 2 at 64k, and GPT-OSS.
      {"rope_yarn",
       "head_dim=128, factor=16",
       4e-5,
       {{20, .0562341}, {21, .0469409}, {30, .00852684}, {45, 1.5177e-4}, {63, 7.21739e-6}},
       1.2772588722},
      {"rope_yarn",
       "head_dim=64, factor=32, base=150000, truncate=false",
       1e-5,
       {{8, .05081327}, {9, .03170570}, {12, .00679496}, {17, 1.29319e-4}},
       1.3465735903},
      {"rope_yarn", "head_dim=64, factor=40, mscale=1, mscale_all_dim=1", 1e-5, {}, 1.0},
      {"rope_yarn", "head_dim=64, factor=4, attention_factor=0.5", 1e-5, {}, 0.5},
      {"rope_yarn", "head_dim=64, factor=0.5", 1e-5, {}, 1.0},
      {"rope_linear", "head_dim=8, factor=8", 1e-15, {{1, 0.0125}}},
      {"rope_ntk", "head_dim=2, factor=4", 1e-15, {{0, 1.0}}},
      {"rope_longrope", longrope, 1e-15, {{1, 0.05}}, 1.1902380714, 1},
      {"rope_longrope", longrope, 1e-15, {{1, 0.05}}, 1.1902380714, 4096},
      {"rope_longrope", longrope, 1e-15, {{1, 0.0125}}, 1.1902380714, 4097},
      {"rope_proportional",
       "head_dim=8, partial_rotary_factor=0.5",
       1e-15,
       {{0, 1.0}, {1, 0.1}, {2, 0.0}, {3, 0.0}}},
      // As the authors' code computes them in float32; fewer pairs than 20 all fade.
      {"rope_soft_clipped",
       "head_dim=128, base=500000",
       2e-6,
       {{43, 1.48253355e-4},
        {44, 1.20769742e-4},
        {45, 9.77102172e-5},
        {53, 1.03269058e-5},
        {54, 7.12906422e-6},
        {62, 2.05525161e-8},
        {63, 0.0}}},
      {"rope_soft_clipped",
       "head_dim=16",
       2e-5,
       {{0, 1.0}, {1, .30057}, {2, .081174}, {3, .019330}, {5, 5.9531e-4}, {7, 0.0}}},
      {"rope_soft_clipped", "head_dim=4, clipped=1", 1e-15, {{0, 1.0}, {1, 0.01}}},
      // CogVideoX.
      {"rope_video",
       "head_dim=64, grid=[30, 45], section=[8, 12, 12]",
       1e-9,
       {{1, .3162277660}, {8, 1.0}, {9, .4641588834}, {20, 1.0}}},
  };
  for (const Frequencies& row : rows) {
    SCOPED_TRACE(testing::Message() << row.scheme << ", " << row.options << ", " << row.length);
    const Rotation turn = turn_of(row.scheme, row.options, row.length);
    for (const auto& [pair, w] : row.golden) {
      EXPECT_NEAR(frequencies_of(turn).at(pair), w, row.precision * w) << pair;
    }
    EXPECT_NEAR(turn.magnitude, row.magnitude, row.magnitude == 1.0 ? 0.0 : 1e-10);
  }
}

struct Base {
  const char *scheme, *options;
  int64_t length;
  double base;
};

// Frequencies of the 64 pairs of a head, of whose base NTK scaling makes another.
TEST(Golden, Bases) {
  const Base rows[] = {
      {"rope_ntk", "factor=8", 0, 82684.62},
      {"rope_ntk", "factor=4", 0, 40889.94},
      {"rope_dynamic", "factor=2", 1, 10000.0},
      {"rope_dynamic", "factor=2", 2048, 10000.0},
      {"rope_dynamic", "factor=2", 2049, 10009.92},
      {"rope_dynamic", "factor=2", 4096, 30527.74},
      {"rope_dynamic", "factor=2", 8192, 72195.86},
      {"rope_dynamic", "factor=2, length=1", 5, 10000.0},
      {"rope_dynamic", "factor=2, length=8192", 5, 72195.86},
  };
  for (const auto& [scheme, options, length, base] : rows) {
    const Rotation turn = turn_of(scheme, std::string("head_dim=128, ") + options, length);
    EXPECT_NEAR(std::pow(frequencies_of(turn)[1], -64.0), base, 0.01)
        << scheme << ", " << options << ", " << length;
  }
}

TEST(Golden, ResonanceHasWholeWavelengths) {
  for (const double w : frequencies_of(turn_of("rope_resonance", "head_dim=32"))) {
    const double wavelength = 2.0 * std::numbers::pi / w;
    EXPECT_NEAR(wavelength, std::round(wavelength), 1e-9 * wavelength);
  }
}

// Of [1, .., 8] at position 3.
TEST(Golden, TurnedVectors) {
  const std::pair<const char*, std::vector<double>> rows[] = {
      {"rope(head_dim=8, layout=interleaved)",
       {-1.272233, -1.838865, 1.683929, 4.707907, 4.817777, 6.147278, 6.975969, 8.020964}},
      {"rope(head_dim=8, layout=half)",
       {-1.695593, 0.137552, 2.788682, 3.975982, -4.808842, 6.323059, 7.086837, 8.011964}},
  };
  for (const auto& [text, golden] : rows) {
    std::vector<double> x = {1, 2, 3, 4, 5, 6, 7, 8};
    const TensorView view(x.data(), DType::kFloat64, {1, 8});
    rotate(plain::Made(text).part(), view, 3, {}, false, view);
    for (size_t c = 0; c < 8; ++c) EXPECT_NEAR(x[c], golden[c], 6e-7) << text << ", " << c;
  }
}

}  // namespace
}  // namespace relpos
