#include <gtest/gtest.h>

#include "testing/schemes.h"

namespace relpos {
namespace {

using plain::error_of;
using plain::Made;

// Frequencies of Llama 3.1 (head size 128), as its published code computes them in float32.
TEST(Llama3, GoldenFrequencies) {
  const Made made("rope_llama3", {{"head_dim", int64_t{128}}, {"layout", "half"}});
  const std::vector<double> w = made.lower(0, 128).rotations[0].frequency;
  const std::pair<size_t, double> golden[] = {
      {28, .00321144611},  {29, .00216657063},   {30, .00137189368},
      {31, .00085675146},  {32, .000524846022},  {33, .00031269365},
      {34, .000178507791}, {35, 9.55621217e-05}, {63, 3.06892588e-07}};
  for (const auto& [pair, frequency] : golden) EXPECT_NEAR(w[pair], frequency, 4e-7 * frequency);
  EXPECT_EQ(w[0], 1.0);
}

TEST(Llama3, GoldenFrequenciesOfVersionTwo) {
  const Made made("rope_llama3", {{"head_dim", int64_t{64}}, {"layout", "half"}, {"factor", 32.0}});
  const std::vector<double> w = made.lower(0, 64).rotations[0].frequency;
  const std::pair<size_t, double> golden[] = {
      {15, .00129054801}, {16, .000429556705}, {17, 9.70828623e-05}};
  for (const auto& [pair, frequency] : golden) EXPECT_NEAR(w[pair], frequency, 4e-7 * frequency);
}

TEST(Llama3, Refuses) {
  EXPECT_NE(error_of([] {
              Made("rope_llama3",
                   {{"head_dim", int64_t{8}}, {"layout", "half"}, {"high_freq_factor", 1.0}});
            }).find("high_freq_factor"),
            std::string::npos);
}

}  // namespace
}  // namespace relpos
