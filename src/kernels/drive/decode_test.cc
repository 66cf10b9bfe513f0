// A few queries against many keys, which are read where they lie: keys and values of each dtype, in place and
// widened, and values that are not finite.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/block/kernels.h"
#include "kernels/reference/reference.h"
#include "testing/random_terms.h"

namespace relpos {
namespace {

constexpr int64_t kQueries = 3, kKeys = 200;
constexpr int64_t kSeen[kQueries] = {kKeys, 100,
                                     150};  // keys that each query sees, from the first on

// Keys and values in a dtype of their own, whose numbers bfloat16 and float16 hold.
struct FewQueries : random_terms::PlainCall {
  FewQueries(DType dtype, int64_t dim) : PlainCall(11, kQueries, kKeys, dim) {
    for (Tensor* t : {&k, &v}) {
      Tensor narrow(dtype, {1, 1, kKeys, dim});
      for (int64_t n = 0; n < kKeys * dim; ++n) {
        narrow.view().store(n, std::round(8 * t->data<float>()[n]) / 8);
      }
      *t = narrow;
    }
    p.key = k.view();
    p.value = v.view();
    for (const int64_t end : kSeen) p.visible.span.emplace_back(0, end);
  }

  float at(int64_t row, int64_t d) const { return out.data<float>()[row * p.head_dim + d]; }
  void set_value(int64_t key, int64_t d, double to) { v.view().store(key * p.head_dim + d, to); }
};

// Runs f(dtype, dim): rows that vectors divide are read in place, others are widened first.
template <typename F>
void for_each_form(F&& f) {
  for (const Kernels& kernels : usable_kernels()) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      for (const int64_t dim : {64, 20}) {
        SCOPED_TRACE(testing::Message()
                     << kernels.name << ", " << dtype_name(dtype) << ", " << dim);
        f(kernels, dtype, dim);
      }
    }
  }
}

TEST(Decode, EqualsTheReference) {
  for_each_form([](const Kernels& kernels, DType dtype, int64_t dim) {
    FewQueries call(dtype, dim);
    call.p.kernels = &kernels;
    call.forward();
    const Tensor out(DType::kFloat64, {1, 1, kQueries, dim}),
        lse(DType::kFloat64, {1, 1, kQueries});
    reference_forward(call.p, {out.view(), lse.view(), {}});
    for (int64_t row = 0; row < kQueries; ++row) {
      EXPECT_NEAR(call.lse.data<float>()[row], lse.data<double>()[row], 2e-5) << row;
      for (int64_t d = 0; d < dim; ++d) {
        ASSERT_NEAR(call.at(row, d), out.data<double>()[row * dim + d], 2e-5) << row << ", " << d;
      }
    }
  });
}

TEST(Decode, ValuesThatAreNotFiniteReachWhoSeesThem) {
  // Of one tile of keys: the first is seen by two of the queries, the second by one.
  constexpr int64_t kNaNKey = 130, kInfiniteKey = 160, kNaNDim = 3, kInfiniteDim = 17;
  constexpr double kInf = std::numeric_limits<double>::infinity();
  for_each_form([](const Kernels& kernels, DType dtype, int64_t dim) {
    FewQueries finite(dtype, dim), odd(dtype, dim);
    odd.set_value(kNaNKey, kNaNDim, std::numeric_limits<double>::quiet_NaN());
    odd.set_value(kInfiniteKey, kInfiniteDim, -kInf);
    for (FewQueries* call : {&finite, &odd}) {
      call->p.kernels = &kernels;
      call->forward();
    }
    for (int64_t row = 0; row < kQueries; ++row) {
      for (int64_t d = 0; d < dim; ++d) {
        if (d == kNaNDim && kNaNKey < kSeen[row]) {
          ASSERT_TRUE(std::isnan(odd.at(row, d))) << row;
        } else if (d == kInfiniteDim && kInfiniteKey < kSeen[row]) {
          ASSERT_EQ(odd.at(row, d), -kInf) << row;
        } else if (kNaNKey < kSeen[row]) {  // summed anew below a higher reference
          ASSERT_NEAR(odd.at(row, d), finite.at(row, d), 2e-6) << row << ", " << d;
        } else {
          ASSERT_EQ(odd.at(row, d), finite.at(row, d)) << row << ", " << d;
        }
      }
    }
  });
}

}  // namespace
}  // namespace relpos
