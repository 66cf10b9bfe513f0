#include "relpos/tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/half.h"
#include "testing/schemes.h"

namespace relpos {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

constexpr DType kAll[] = {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16,
                          DType::kInt64,   DType::kInt32,   DType::kBool};

// Value of finite bits by the definition of the format.
double decode(uint16_t bits, int exponent_bits) {
  const int fraction_bits = 15 - exponent_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits & 0x7FFF) >> fraction_bits;
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, 1 - bias - fraction_bits)
                    : std::ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

double round_trip(DType dtype, double value) {
  Tensor tensor(dtype, {1});
  tensor.view().store(0, value);
  return tensor.view().load(0);
}

class SixteenBits : public ::testing::TestWithParam<std::pair<DType, int>> {
 protected:
  const DType dtype = GetParam().first;
  const int exponent_bits = GetParam().second;
  const int infinity = ((1 << exponent_bits) - 1) << (15 - exponent_bits);
};

TEST_P(SixteenBits, EveryFiniteValueSurvives) {
  for (int magnitude = 0; magnitude < infinity; ++magnitude) {
    for (int sign : {0, 0x8000}) {
      auto bits = static_cast<uint16_t>(magnitude | sign);
      const TensorView view(&bits, dtype, {1});
      const double value = decode(bits, exponent_bits);
      ASSERT_EQ(view.load(0), value);
      const uint16_t before = bits;
      view.store(0, value);
      ASSERT_EQ(bits, before);
    }
  }
}

TEST_P(SixteenBits, RoundsToNearestEvenStraightFromDouble) {
  for (int magnitude = 0; magnitude + 1 < infinity; ++magnitude) {
    const auto low_bits = static_cast<uint16_t>(magnitude);
    const auto high_bits = static_cast<uint16_t>(magnitude + 1);
    const double low = decode(low_bits, exponent_bits), high = decode(high_bits, exponent_bits);
    const double middle = low + (high - low) / 2;
    for (double sign : {1.0, -1.0}) {
      ASSERT_EQ(round_trip(dtype, sign * middle), sign * (magnitude % 2 == 0 ? low : high));
      // One step of double past the tie; a detour over float32 would round back to the tie.
      ASSERT_EQ(round_trip(dtype, sign * std::nextafter(middle, kInf)), sign * high);
      ASSERT_EQ(round_trip(dtype, sign * std::nextafter(middle, -kInf)), sign * low);
    }
  }
}

TEST_P(SixteenBits, SpecialValues) {
  const double largest = decode(static_cast<uint16_t>(infinity - 1), exponent_bits);
  const double step = largest - decode(static_cast<uint16_t>(infinity - 2), exponent_bits);
  EXPECT_EQ(round_trip(dtype, kInf), kInf);
  EXPECT_EQ(round_trip(dtype, -kInf), -kInf);
  EXPECT_TRUE(std::isnan(round_trip(dtype, kNan)));
  EXPECT_EQ(round_trip(dtype, std::nextafter(largest + step / 2, 0)), largest);
  EXPECT_EQ(round_trip(dtype, largest + step / 2), kInf);
  EXPECT_EQ(round_trip(dtype, -1e308), -kInf);
  EXPECT_EQ(round_trip(dtype, 1e-300), 0.0);
  EXPECT_TRUE(std::signbit(round_trip(dtype, -1e-300)));
}

TEST_P(SixteenBits, EveryNanStaysNan) {
  for (int magnitude = infinity + 1; magnitude < 0x8000; ++magnitude) {
    auto bits = static_cast<uint16_t>(magnitude);
    const TensorView view(&bits, dtype, {1});
    ASSERT_TRUE(std::isnan(view.load(0)));
    view.store(0, view.load(0));
    ASSERT_TRUE(std::isnan(view.load(0)));
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, SixteenBits,
                         ::testing::Values(std::pair{DType::kBFloat16, 8},
                                           std::pair{DType::kFloat16, 5}));

TEST(TensorView, LoadsAndStoresEveryDTypeUnaligned) {
  for (DType dtype : kAll) {
    std::vector<char> memory(64, 0x55);
    const TensorView view(memory.data() + 1, dtype, {2, 2});
    for (int n = 0; n < 4; ++n) view.store(n, n % 2);
    EXPECT_EQ(view.at({0, 1}), 1.0) << dtype_name(dtype);
    EXPECT_EQ(view.at({1, 0}), 0.0) << dtype_name(dtype);
    EXPECT_EQ(view.load_int(3), 1) << dtype_name(dtype);
    EXPECT_EQ(memory[0], 0x55);
    EXPECT_EQ(memory[static_cast<size_t>(1 + 4 * item_size(dtype))], 0x55);
  }
}

TEST(TensorView, BoolIsOneByteAndAnyNonzeroIsTrue) {
  std::vector<uint8_t> bytes{0, 1, 255};
  const TensorView view(bytes.data(), DType::kBool, {3});
  EXPECT_EQ(view.load(0), 0.0);
  EXPECT_EQ(view.load(2), 1.0);
  view.store(0, 0.25);
  EXPECT_EQ(bytes[0], 1);
}

TEST(TensorView, IntegersKeepAllBitsAndSaturate) {
  int64_t value = INT64_MAX - 1;
  const TensorView view(&value, DType::kInt64, {1});
  EXPECT_EQ(view.load_int(0), INT64_MAX - 1);
  view.store(0, 1e300);
  EXPECT_EQ(value, INT64_MAX);
  view.store(0, -kInf);
  EXPECT_EQ(value, INT64_MIN);
  view.store(0, kNan);
  EXPECT_EQ(value, 0);
}

TEST(TensorView, Strides) {
  std::vector<float> data{0, 1, 2, 3, 4, 5};
  const TensorView rows(data.data(), DType::kFloat32, {2, 3});
  EXPECT_EQ(rows.at({1, 2}), 5.0);
  EXPECT_TRUE(rows.contiguous());
  const TensorView columns(data.data(), DType::kFloat32, {3, 2}, {1, 3});
  EXPECT_EQ(columns.at({2, 1}), 5.0);
  EXPECT_FALSE(columns.contiguous());
  const TensorView backwards(data.data() + 5, DType::kFloat32, {6}, {-1});
  EXPECT_EQ(backwards.at({5}), 0.0);
  const TensorView wide(data.data() + 4, DType::kFloat32, {1000}, {0});
  EXPECT_EQ(wide.at({999}), 4.0);
  EXPECT_TRUE(TensorView(data.data(), DType::kFloat32, {1, 6}, {77, 1}).contiguous());
}

TEST(TensorView, EmptyScalarAndNotGiven) {
  EXPECT_FALSE(TensorView().given());
  EXPECT_EQ(TensorView().numel(), 0);
  EXPECT_EQ(TensorView(nullptr, DType::kFloat32, {0, INT64_MAX, INT64_MAX}).numel(), 0);
  EXPECT_EQ(TensorView(nullptr, DType::kFloat32, {INT64_MAX, INT64_MAX, 0}).numel(), 0);
  EXPECT_EQ(TensorView(nullptr, DType::kFloat32, {}).numel(), 1);
  EXPECT_EQ(TensorView(nullptr, DType::kFloat32, {2, 8, 128}).shape_text(), "[2, 8, 128]");
}

TEST(TensorView, RefusesWhatItCannotAddress) {
  const auto make = [](std::vector<int64_t> shape) {
    return TensorView(nullptr, DType::kFloat32, std::move(shape));
  };
  EXPECT_THROW(make({1, 1, 1, 1, 1, 1, 1}), Error);
  EXPECT_THROW(make({2, -1}), Error);
  EXPECT_THROW(make({0, -1}), Error);
  EXPECT_THROW(make({int64_t{1} << 32, int64_t{1} << 32}), Error);
  EXPECT_THROW(make({int64_t{1} << 62}), Error);
  EXPECT_THROW(TensorView(nullptr, DType::kFloat32, {2, 2}, {1}), Error);
  EXPECT_THROW(TensorView(nullptr, DType::kFloat32, {3}, {INT64_MIN}), Error);
  EXPECT_THROW(TensorView(nullptr, DType::kFloat32, {3}, {-(int64_t{1} << 60)}), Error);
  EXPECT_THROW(
      TensorView(nullptr, DType::kFloat32, {2, 2}, {int64_t{1} << 60, -(int64_t{1} << 60)}), Error);
  EXPECT_NO_THROW(make({int64_t{1} << 60}));
  EXPECT_EQ(plain::error_of([&] { make({int64_t{1} << 40, int64_t{1} << 40}); }),
            "tensor: shape [1099511627776, 1099511627776] has more than 2^63 - 1 elements");
}

TEST(Tensor, OwnsZeroedMemoryAndCopiesIt) {
  Tensor tensor(DType::kFloat32, {2, 2});
  EXPECT_EQ(tensor.view().at({1, 1}), 0.0);
  Tensor copy = tensor;
  copy.view().store(0, 7.0);
  EXPECT_EQ(tensor.view().load(0), 0.0);
  const Tensor moved = std::move(copy);
  EXPECT_EQ(moved.view().load(0), 7.0);
  EXPECT_EQ(moved.data<float>()[0], 7.0F);
}

}  // namespace
}  // namespace relpos
