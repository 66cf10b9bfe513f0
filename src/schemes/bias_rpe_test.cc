#include <gtest/gtest.h>

#include "testing/schemes.h"

namespace relpos {
namespace {

using plain::error_of;
using plain::Made;

// gather_biases of the notebook, for one pair.
int64_t notebook_index(int64_t query, int64_t key, int64_t r_max) {
  return std::min(std::max(query - key, -r_max + 1), r_max - 1) + r_max - 1;
}

TEST(BiasRPE, BiasAndGradientAreTheNotebooks) {
  const int64_t heads = 3;
  for (const int64_t r_max : {1, 2, 5, 40}) {
    for (const Grid& grid : {Grid{7, 12, 0}, Grid{1, 30, 29}, Grid{30, 3, -4}}) {
      const Made rpe("bias_rpe", {{"heads", heads}, {"max_distance", r_max}});
      const Terms terms = rpe.lower(heads);
      const TensorView& biases = rpe.parameters()[0];
      std::vector<double> expected(static_cast<size_t>(biases.numel()), 0.0);
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t i = 0; i < grid.queries; ++i) {
          for (int64_t j = 0; j < grid.keys; ++j) {
            const int64_t m = notebook_index(grid.q_offset + i, j, r_max);
            ASSERT_EQ(plain::bias(terms.biases[0], h, j - i - grid.q_offset), biases.at({h, m}));
            expected[static_cast<size_t>(h * (2 * r_max - 1) + m)] += plain::weight(h, i, j);
          }
        }
      }
      EXPECT_EQ(rpe.pull_back(plain::weighted_gradients(terms, heads, grid))[0], expected);
    }
  }
}

TEST(BiasRPE, Parameter) {
  const Made rpe("bias_rpe", {{"heads", int64_t{2}}, {"max_distance", int64_t{3}}});
  const ParameterSpec spec = rpe.specs()[0];
  EXPECT_EQ(spec.name, "biases");
  EXPECT_EQ(spec.shape, (std::vector<int64_t>{2, 5}));
  EXPECT_EQ(spec.init.values, (std::vector<double>{0.0}));
  EXPECT_TRUE(spec.trainable);
}

TEST(BiasRPE, Refuses) {
  EXPECT_NE(error_of([] {
              Made("bias_rpe", {{"heads", int64_t{2}}, {"max_distance", int64_t{0}}});
            }).find("max_distance: expected 1"),
            std::string::npos);
  const Made rpe("bias_rpe", {{"heads", int64_t{2}}, {"max_distance", int64_t{3}}});
  EXPECT_NE(error_of([&] { rpe.lower(8); }).find("heads"), std::string::npos);
}

}  // namespace
}  // namespace relpos
