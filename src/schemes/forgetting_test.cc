#include <gtest/gtest.h>

#include "binding/recipe.h"
#include "relpos/error.h"
#include "relpos/position.h"
#include "testing/schemes.h"

namespace relpos {
namespace {

TEST(Forgetting, BiasIsMinusTheSumOfWhatWasForgotten) {
  Part part = make_part(*find_scheme("forgetting"), {});
  ASSERT_TRUE(part.specs()[0].input);
  const Tensor log_f(DType::kFloat32, {2, 3, 5});
  for (int64_t n = 0; n < 30; ++n) log_f.view().store(n, -0.125 * static_cast<double>(n % 7));
  part.parameters = {log_f.view()};
  CallSizes sizes;
  const std::vector<bool> wants{true};
  const PartCall call{sizes, part.parameters, wants};
  const Terms terms = part.recipe->bind(call);
  const TermData& bias = terms.key_biases[0].values;
  TermGradients gradients = TermGradients::zeros(terms);
  for (size_t n = 0; n < 30; ++n) gradients.key_biases[0].table[n] = static_cast<double>(n);
  ParameterSums sums{std::vector<double>(30, 0.0)};
  part.recipe->pull_back(call, gradients, sums);
  for (int64_t row = 0; row < 6; ++row) {
    double sum = 0.0;
    for (int64_t j = 0; j < 5; ++j) {
      sum += log_f.view().load(row * 5 + j);
      EXPECT_EQ(bias.multiplier * bias.view.load(row * 5 + j), -sum);
      double later = 0.0;  // every key from this one on contains its gate
      for (int64_t k = j; k < 5; ++k) later += static_cast<double>(row * 5 + k);
      EXPECT_EQ(sums[0][static_cast<size_t>(row * 5 + j)], later);
    }
  }
}

}  // namespace
}  // namespace relpos
