#include <gtest/gtest.h>

#include <cmath>

#include "testing/schemes.h"

namespace relpos {
namespace {

using plain::Made;

constexpr int64_t kHeads = 2, kHeadDim = 3, kWidth = 4;

double feature(int64_t n, int64_t w) {
  const double angle = static_cast<double>(n) * std::pow(10000.0, -2.0 * (w % 2) / kWidth);
  return w < kWidth / 2 ? std::sin(angle) : std::cos(angle);
}

TEST(TransformerXL, RowsAreProjectedSinusoids) {
  Made made(
      "transformer_xl",
      {{"heads", kHeads}, {"head_dim", kHeadDim}, {"width", kWidth}, {"clamp_len", int64_t{9}}});
  made.distances = {-100, 60};
  const Terms terms = made.lower(kHeads, kHeadDim);
  const TensorView weight = made.parameters()[0];
  const RowTable& rows = terms.row_tables[0];
  TermGradients gradients = TermGradients::zeros(terms);
  std::vector<double> expected(static_cast<size_t>(weight.numel()), 0.0);
  for (int64_t h = 0; h < kHeads; ++h) {
    for (int64_t delta = -100; delta <= 60; ++delta) {
      const int64_t n = std::clamp<int64_t>(-delta, -9, 9);
      for (int64_t d = 0; d < kHeadDim; ++d) {
        double sum = 0;
        const double upstream = plain::weight(h, d, delta);
        for (int64_t w = 0; w < kWidth; ++w) {
          const int64_t at = (h * kHeadDim + d) * kWidth + w;
          sum += weight.load(at) * feature(n, w);
          expected[static_cast<size_t>(at)] += upstream * feature(n, w);
        }
        EXPECT_NEAR(rows.table.view.at({h, rows.map(delta), d}), sum, 1e-12);
        gradients.row_tables[0].table[static_cast<size_t>((h * 161 + delta + 100) * kHeadDim + d)] =
            upstream;
      }
    }
  }
  const auto sums = made.pull_back(gradients);
  for (size_t n = 0; n < expected.size(); ++n) EXPECT_NEAR(sums[0][n], expected[n], 1e-10);
}

TEST(TransformerXL, GivesItsBiasesToTheQueries) {
  Made made("transformer_xl", {{"heads", kHeads}, {"head_dim", kHeadDim}, {"width", kWidth}});
  made.distances = {0, 0};
  const Terms terms = made.lower(kHeads, kHeadDim);
  EXPECT_EQ(terms.query_added[0].view.data, made.parameters()[1].data);
  EXPECT_EQ(terms.row_tables[0].added.view.data, made.parameters()[2].data);
}

}  // namespace
}  // namespace relpos
