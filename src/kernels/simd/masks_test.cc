// Rows of floating masks: -inf hides, and nothing else does, NaN included.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/block/kernels.h"

namespace relpos {
namespace {

TEST(Masks, OnlyMinusInfinityHides) {
  const double numbers[] = {0.0, -HUGE_VAL, std::nan(""), HUGE_VAL, -1e4, -std::nan(""), 1e-8};
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat64}) {
    for (const int64_t step : {1, 2}) {
      const Tensor mask(dtype, {1, 1, 2, step * kTile});
      TensorView view = mask.view();
      view.shape[3] = kTile;
      view.strides[3] = step;
      for (int64_t n = 0; n < mask.view().numel(); ++n) view.store(n, numbers[n / step % 7]);
      for (const Kernels& kernels : usable_kernels()) {
        for (const int64_t count : {1, 6, 63, 64}) {
          for (const int64_t first : {int64_t{0}, step * kTile}) {
            uint64_t want = 0;
            for (int64_t c = 0; c < count; ++c) {
              const uint64_t shown = view.load(first + c * step) == -HUGE_VAL ? 0 : 1;
              want |= shown << c;
            }
            EXPECT_EQ(kernels.mask_bits(view, first, count), want)
                << kernels.name << ", dtype " << static_cast<int>(dtype) << ", step " << step
                << ", " << count << " keys";
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace relpos
