#include "values/views.h"

#include <gtest/gtest.h>

#include <vector>

#include "relpos/error.h"
#include "testing/schemes.h"

namespace relpos {
namespace {

TEST(Views, ABroadcastRepeatsWhatItIsGiven) {
  std::vector<float> numbers{1, 2, 3, 4, 5, 6};
  const TensorView column(numbers.data(), DType::kFloat32, {2, 1, 3}, {3, 3, 1});
  const TensorView wide = broadcast_view(column, {4, 2, 5, 3}, "bias");
  ASSERT_EQ(wide.dims(), (std::vector<int64_t>{4, 2, 5, 3}));
  for (int64_t b = 0; b < 4; ++b) {
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t i = 0; i < 5; ++i) {
        for (int64_t j = 0; j < 3; ++j) {
          EXPECT_EQ(wide.at({b, h, i, j}), numbers[static_cast<size_t>(h * 3 + j)]);
        }
      }
    }
  }
  const TensorView same = broadcast_view(column, {2, 1, 3}, "bias");
  EXPECT_EQ(same.strides[1], 3);
}

TEST(Views, ABroadcastThatDoesNotFitIsRefused) {
  std::vector<float> numbers(6);
  const TensorView view(numbers.data(), DType::kFloat32, {2, 3});
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{2, 4}, {3, 3}, {2, 1}, {3}, {2, 3, 1}}) {
    EXPECT_THROW(broadcast_view(view, shape, "bias"), Error);
  }
  EXPECT_EQ(plain::error_of([&] { broadcast_view(view, {2, 4}, "bias"); }),
            "bias: expected a shape that broadcasts to [2, 4], got [2, 3]");
}

TEST(Views, AnOutputIsWhole) {
  std::vector<float> numbers(6);
  const auto checked = [&](std::vector<int64_t> strides, DType dtype = DType::kFloat32) {
    const TensorView view(numbers.data(), dtype, {2, 3}, std::move(strides));
    return plain::error_of([&] { check_output(view, {2, 3}, DType::kFloat32, "out"); });
  };
  EXPECT_EQ(checked({3, 1}), "");
  EXPECT_EQ(checked({1, 2}), "");
  EXPECT_EQ(checked({0, 1}), "out: an output must not overlap itself, but axis 0 has stride 0");
  EXPECT_EQ(checked({3, 0}), "out: an output must not overlap itself, but axis 1 has stride 0");
  EXPECT_EQ(checked({3, 1}, DType::kInt32), "out: expected float32, got int32");
  const TensorView one(numbers.data(), DType::kFloat32, {1, 3}, {0, 1});
  EXPECT_NO_THROW(check_output(one, {1, 3}, DType::kFloat32, "out"));
  const TensorView none(numbers.data(), DType::kFloat32, {0, 3}, {0, 0});
  EXPECT_NO_THROW(check_output(none, {0, 3}, DType::kFloat32, "out"));
}

}  // namespace
}  // namespace relpos
