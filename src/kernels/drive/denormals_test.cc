#include "kernels/drive/denormals.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "testing/random_terms.h"

namespace relpos {
namespace {

// Two batch rows, two key heads of two query heads each; every number is `size`.
struct TinyCall : random_terms::PlainCall {
  TinyCall() : PlainCall(1, 3, 6, 5, 2, 4, 2) {
    for (Tensor* tensor : {&q, &k, &v, &dout}) fill(*tensor, 0.5f);
  }
  static void fill(const Tensor& tensor, float size) {
    std::fill_n(tensor.data<float>(), tensor.view().numel(), size);
  }
  FloatControl of_forward() const { return float_control(p, 1, 1); }
  FloatControl of_backward() const { return float_control(p, 1, 1, dout.view()); }
};

TEST(FloatControl, FlushesUnlessAPairIsTiny) {
  EXPECT_EQ(TinyCall().of_forward(), kFlushDenormals);
  EXPECT_EQ(TinyCall().of_backward(), kFlushDenormals);
  TinyCall call;
  TinyCall::fill(call.v, 1e-40f);
  EXPECT_EQ(call.of_forward(), kKeepDenormals);
  EXPECT_EQ(call.of_backward(), kKeepDenormals);
  call.v.data<float>()[0] = 1.0f;  // of another pair
  EXPECT_EQ(call.of_forward(), kKeepDenormals);
  call.v.data<float>()[call.v.view().numel() - 1] = NAN;
  EXPECT_EQ(call.of_forward(), kFlushDenormals);
  TinyCall hidden;  // nobody sees the key that is not tiny
  TinyCall::fill(hidden.v, 1e-40f);
  hidden.v.data<float>()[hidden.v.view().numel() - 1] = 1.0f;
  hidden.p.visible.span.assign(3, {0, 5});
  EXPECT_EQ(hidden.of_forward(), kKeepDenormals);
  hidden.p.visible.span.clear();
  EXPECT_EQ(hidden.of_forward(), kFlushDenormals);
  hidden.p.visible.key_bits = {0x3F, 0x1F};
  EXPECT_EQ(hidden.of_forward(), kKeepDenormals);
  const Tensor mask(DType::kBool, {1, 1, 1, 6});
  std::fill_n(mask.data<bool>(), 5, true);
  hidden.p.visible.key_bits.clear();
  hidden.p.visible.mask = TensorView(mask.data<bool>(), DType::kBool, {2, 4, 3, 6}, {0, 0, 0, 1});
  EXPECT_EQ(hidden.of_forward(), kKeepDenormals);
  for (Tensor TinyCall::* tensor : {&TinyCall::q, &TinyCall::k, &TinyCall::dout}) {
    TinyCall tiny;
    TinyCall::fill(tiny.*tensor, 1e-38f);
    EXPECT_EQ(tiny.of_forward(), kFlushDenormals);
    EXPECT_EQ(tiny.of_backward(), kKeepDenormals);
  }
}

}  // namespace
}  // namespace relpos
