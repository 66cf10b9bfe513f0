#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "relpos/attention.h"
#include "relpos/dense.h"
#include "testing/schemes.h"

namespace relpos {
namespace {

constexpr int64_t kStart = 1, kDims = 4;
constexpr double kFrequency[] = {1.0, 0.01};
constexpr double kMagnitude = 1.25;

template <PairLayout layout, bool float32_angles>
void turn(Builder& b) {
  Rotation rotation;
  rotation.start = kStart;
  rotation.dims = kDims;
  rotation.layout = layout;
  rotation.by_position().frequency = {kFrequency[0], kFrequency[1]};
  rotation.by_position().float32_angles = float32_angles;
  rotation.magnitude = kMagnitude;
  b.rotation(rotation);
}

void too_few(Builder& b) {
  Rotation rotation;
  rotation.dims = kDims;
  rotation.by_position().frequency = {kFrequency[0]};
  b.rotation(rotation);
}

void nothing(Builder&) {}

const Part kHalf = plain::toy<turn<PairLayout::kHalf, false>>(),
           kInterleaved = plain::toy<turn<PairLayout::kInterleaved, false>>(),
           kNoRotation = plain::toy<nothing>();

Tensor numbers(DType dtype, std::vector<int64_t> shape) {
  Tensor tensor(dtype, std::move(shape));
  for (int64_t n = 0; n < tensor.view().numel(); ++n) {
    tensor.view().store(n, std::sin(1.0 + 0.7 * static_cast<double>(n)));
  }
  return tensor;
}

TEST(Rotary, TablesHoldEachAngleTwice) {
  EXPECT_EQ(rotary_dims(kHalf), kDims);
  EXPECT_EQ(rotary_dims(kNoRotation), 0);
  const int64_t far = 1'000'003;
  for (const Part* p : {&kHalf, &kInterleaved}) {
    const Tensor cos(DType::kFloat32, {3, kDims}), sin(DType::kFloat64, {3, kDims});
    rotary_tables(*p, 3, far, cos.view(), sin.view());
    for (int64_t l = 0; l < 3; ++l) {
      for (int64_t d = 0; d < kDims; ++d) {
        const int64_t pair = p == &kHalf ? d % 2 : d / 2;
        const double angle = static_cast<double>(far + l) * kFrequency[pair];
        EXPECT_EQ(cos.view().at({l, d}), static_cast<float>(kMagnitude * std::cos(angle)));
        EXPECT_EQ(sin.view().at({l, d}), kMagnitude * std::sin(angle));
      }
    }
  }
}

TEST(Rotary, Float32AnglesRoundTheProduct) {
  const Tensor cos(DType::kFloat64, {1, kDims}), sin(DType::kFloat64, {1, kDims});
  const Part single = plain::toy<turn<PairLayout::kHalf, true>>();
  rotary_tables(single, 1, 16'777'217, cos.view(), sin.view());
  EXPECT_EQ(cos.view().at({0, 0}), kMagnitude * std::cos(16'777'216.0));
  EXPECT_EQ(sin.view().at({0, 1}),
            kMagnitude * std::sin(static_cast<double>(16'777'216.0F * 0.01F)));
}

double expected(const Part& p, const TensorView& x, int64_t b, int64_t l, int64_t d,
                double position, bool inverse) {
  if (d < kStart || d >= kStart + kDims) return x.at({b, l, d});
  const int64_t e = d - kStart;
  const bool half = p.recipe == kHalf.recipe;
  const int64_t pair = half ? e % 2 : e / 2;
  const bool second = half ? e >= 2 : e % 2 == 1;
  const int64_t other = half ? (second ? d - 2 : d + 2) : (second ? d - 1 : d + 1);
  const double angle = position * kFrequency[pair] * (inverse ? -1.0 : 1.0);
  return kMagnitude * (x.at({b, l, d}) * std::cos(angle) +
                       (second ? 1.0 : -1.0) * x.at({b, l, other}) * std::sin(angle));
}

TEST(Rotary, RotatesTheSliceAndCopiesTheRest) {
  const std::pair<DType, double> precision[] = {{DType::kFloat64, 1e-15},
                                                {DType::kFloat32, 3e-7},
                                                {DType::kBFloat16, 1.0 / 128},
                                                {DType::kFloat16, 1.0 / 1024}};
  std::vector<int64_t> places{5, -3, 1'000'000};
  const TensorView positions(places.data(), DType::kInt64, {3});
  for (const auto& [dtype, tolerance] : precision) {
    for (const Part* p : {&kHalf, &kInterleaved}) {
      for (bool inverse : {false, true}) {
        const Tensor x = numbers(dtype, {2, 3, 7}), out(dtype, {2, 3, 7}), moved(dtype, {2, 3, 7});
        rotate(*p, x.view(), 0, positions, inverse, out.view());
        rotate(*p, x.view(), 40, {}, inverse, moved.view());
        for (int64_t b = 0; b < 2; ++b) {
          for (int64_t l = 0; l < 3; ++l) {
            for (int64_t d = 0; d < 7; ++d) {
              const auto place = static_cast<double>(places[static_cast<size_t>(l)]);
              EXPECT_NEAR(out.view().at({b, l, d}), expected(*p, x.view(), b, l, d, place, inverse),
                          2 * tolerance);
              EXPECT_NEAR(moved.view().at({b, l, d}),
                          expected(*p, x.view(), b, l, d, 40.0 + static_cast<double>(l), inverse),
                          2 * tolerance);
            }
          }
        }
      }
    }
  }
}

TEST(Rotary, AnyRankAnyStridesAndInPlace) {
  const Tensor flat = numbers(DType::kFloat64, {4, 6});
  const Tensor whole(DType::kFloat64, {4, 6});
  rotate(kHalf, flat.view(), 2, {}, false, whole.view());
  const Tensor memory = numbers(DType::kFloat64, {4, 6});
  const TensorView four(memory.view().data, DType::kFloat64, {1, 1, 4, 6}, {0, 99, 6, 1});
  const Tensor back(DType::kFloat64, {6, 4});
  const TensorView columns(back.view().data, DType::kFloat64, {1, 1, 4, 6}, {1, 1, 1, 4});
  rotate(kHalf, four, 2, {}, false, columns);
  rotate(kHalf, four, 2, {}, false, four);
  for (int64_t l = 0; l < 4; ++l) {
    for (int64_t d = 0; d < 6; ++d) {
      EXPECT_EQ(back.view().at({d, l}), whole.view().at({l, d}));
      EXPECT_EQ(memory.view().at({l, d}), whole.view().at({l, d}));
    }
  }
  const Tensor none(DType::kFloat64, {0, int64_t{1} << 40, 6});
  rotate(kHalf, none.view(), 0, {}, false, none.view());
}

TEST(Rotary, RefusesBadArguments) {
  const Tensor x(DType::kFloat32, {3, 6}), narrow(DType::kFloat32, {3, 4}),
      ints(DType::kInt64, {3});
  const Tensor line(DType::kFloat32, {6}), other(DType::kFloat64, {3, 6});
  EXPECT_THROW(rotate(kHalf, line.view(), 0, {}, false, line.view()), Error);
  EXPECT_THROW(rotate(kHalf, narrow.view(), 0, {}, false, narrow.view()), Error);
  EXPECT_THROW(rotate(kHalf, x.view(), 0, {}, false, other.view()), Error);
  const Part of_six = parse_position("rope(head_dim=6, layout=half)").parts[0];
  const Tensor wide(DType::kFloat32, {3, 99});
  EXPECT_THROW(rotate(of_six, wide.view(), 0, {}, false, wide.view()), Error);
  EXPECT_THROW(rotate(kHalf, x.view(), 0, line.view(), false, x.view()), Error);
  EXPECT_THROW(rotate(kHalf, x.view(), int64_t{1} << 61, {}, false, x.view()), Error);
  EXPECT_THROW(rotate(kNoRotation, x.view(), 0, {}, false, x.view()), Error);
  EXPECT_THROW(rotary_tables(kHalf, 3, 0, ints.view(), ints.view()), Error);
  EXPECT_NO_THROW(rotate(kHalf, x.view(), 0, ints.view(), false, x.view()));
  const plain::Made mixed("rope_mixed(heads=2, head_dim=4, grid=[2, 3])");
  const auto rotated = [&](const Part& part) {
    rotate(part, narrow.view(), 0, {}, false, narrow.view());
  };
  const Part bare = parse_position("rope_mixed(heads=2, head_dim=4, grid=[2, 3])").parts[0];
  plain::expect_error([&] { rotated(bare); }, "expected 1 parameters, got 0");
  plain::expect_error([&] { rotated(mixed.part()); }, "H a multiple of the 2 heads");
}

TEST(Rotary, TooFewFrequenciesAreRefusedWhereverARotationIsRead) {
  const Part part = plain::toy<too_few>();
  const Tensor x(DType::kFloat32, {1, 1, 3, kDims}), out = x;
  const char* what = "expected one frequency for each pair of 4 dims, got 1";
  plain::expect_error([&] { rotate(part, x.view(), 0, {}, false, out.view()); }, what);
  plain::expect_error(
      [&] { attention(x.view(), x.view(), x.view(), Position{{part}}, {}, out.view()); }, what);
}

}  // namespace
}  // namespace relpos
