#include <gtest/gtest.h>

#include "testing/schemes.h"

namespace relpos {
namespace {

TEST(Layout, BiasesOfThreeDistances) {
  Part part = make_part(*find_scheme("layout"), {{"heads", int64_t{2}}, {"scale", 0.5}});
  for (const ParameterSpec& spec : part.specs()) {
    if (spec.input) break;
    part.parameters.push_back(TensorView(nullptr, DType::kFloat32, spec.shape));
  }
  Tensor boxes(DType::kInt64, {1, 2, 3});
  const int64_t numbers[] = {10, 20, 700, 5, 5, 90};
  std::copy_n(numbers, 6, boxes.data<int64_t>());
  part.parameters.push_back(boxes.view());
  part.parameters.push_back(boxes.view());
  const CallSizes sizes{.batch = 1, .heads = 2, .queries = 3, .keys = 3};
  const Terms terms = part.recipe->bind({sizes, part.parameters, std::vector<bool>(5, false)});
  ASSERT_EQ(terms.biases.size(), 3U);
  EXPECT_EQ(terms.biases[0].coordinates, nullptr);
  EXPECT_EQ(terms.biases[0].map->classes(), 32);
  for (int axis = 0; axis < 2; ++axis) {
    const DistanceBias& bias = terms.biases[static_cast<size_t>(axis + 1)];
    EXPECT_EQ(bias.axis, axis);
    EXPECT_EQ(bias.map->classes(), 64);
    EXPECT_EQ(bias.table.multiplier, 0.5);
    EXPECT_EQ(bias.coordinates->key(axis, 0, 2), axis == 0 ? 700 : 90);
  }
}

}  // namespace
}  // namespace relpos
