// The backward pass of many short heads: one parallel region, whoever writes the gradients of the keys; and
// what is not finite in a tile whose groups of rows share a product.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "base/parallel.h"
#include "kernels/block/kernels.h"
#include "testing/random_terms.h"

namespace relpos {
namespace {

using random_terms::add_term;

constexpr int64_t kBatch = 24, kHeads = 4, kLength = 32, kDim = 32;

// Short heads, with trained terms as wanted.
struct ShortCall : random_terms::PlainCall {
  explicit ShortCall(int64_t length = kLength, int64_t kv_heads = kHeads, int64_t batch = kBatch)
      : PlainCall(7, length, length, kDim, batch, kHeads, kv_heads) {
    p.scale = 0.2;
  }
  void train_bias() {
    add_term(p.terms.biases, ClassMap::clamp(1 - kLength, kLength - 1),
             trained({kHeads, 2 * kLength - 1}));
  }

  // The teams that a backward pass on so many threads runs; its results stay in the call.
  int64_t teams(int threads) {
    p.threads = threads;
    forward();
    const ProblemGradients to = gradients();
    const int64_t before = detail::teams_run();
    fused_backward(p, out.view(), lse.view(), dout.view(), {}, to);
    return detail::teams_run() - before;
  }
};

TEST(ShortBackward, IsOneParallelRegion) {
  EXPECT_EQ(ShortCall().teams(2), 1);
  EXPECT_EQ(ShortCall().teams(1), 0);
  EXPECT_EQ(ShortCall(kLength, 1).teams(2), 1) << "heads of a group";
  EXPECT_EQ(ShortCall(200).teams(2), 1) << "several blocks and tiles";
}

TEST(ShortBackward, OfTrainedTermsIsAFew) {
  ShortCall biased;
  biased.train_bias();
  EXPECT_EQ(biased.teams(2), 2) << "blocks, then sums of all pairs";
  ShortCall of_keys;
  of_keys.p.terms.key_biases = {{of_keys.trained({kHeads, kLength})}};
  EXPECT_EQ(of_keys.teams(2), 3) << "keys' own sums are written after their blocks";
}

// Batch rows add to the gradient of a mask that they share in turns, in the region of their blocks.
TEST(ShortBackward, OfASharedMaskIsOneParallelRegion) {
  ShortCall call;
  const int64_t row = kLength * kLength;
  std::vector<double> gradient(kHeads * row);
  const ProblemGradients own = call.gradients();
  ProblemGradients to = own;
  to.mask = &gradient;
  to.mask_index = TensorView(nullptr, DType::kFloat64, {kBatch, kHeads, kLength, kLength});
  to.mask_index.strides = {0, row, kLength, 1};
  call.p.threads = 2;
  call.forward();
  const int64_t before = detail::teams_run();
  fused_backward(call.p, call.out.view(), call.lse.view(), call.dout.view(), {}, to);
  EXPECT_EQ(detail::teams_run() - before, 1);
}

bool same_bits(const Tensor& a, const Tensor& b) {
  const auto bytes = static_cast<size_t>(a.view().numel()) * sizeof(float);
  return std::memcmp(a.data<float>(), b.data<float>(), bytes) == 0;
}

// One thread writes a pair's keys when its last block ends; more threads than pairs write them together.
TEST(ShortBackward, HasTheBitsOfManyThreads) {
  for (const int64_t length : {kLength, int64_t{200}}) {
    for (const int64_t kv_heads : {kHeads, int64_t{1}}) {
      for (const bool trained : {false, true}) {
        ShortCall alone(length, kv_heads, 6), many(length, kv_heads, 6);
        for (ShortCall* call : {&alone, &many}) {
          if (trained) call->train_bias();
        }
        EXPECT_EQ(alone.teams(1), 0);
        EXPECT_GE(many.teams(64), 2);
        EXPECT_TRUE(same_bits(alone.dq, many.dq) && same_bits(alone.dk, many.dk) &&
                    same_bits(alone.dv, many.dv))
            << length << ", " << kv_heads << ", " << trained;
        if (!trained) continue;
        EXPECT_EQ(alone.terms.biases[0].table, many.terms.biases[0].table);
      }
    }
  }
}

TEST(ShortBackward, WithoutQueriesGivesZeros) {
  ShortCall call;
  for (Tensor* t : {&call.q, &call.dout, &call.out, &call.dq}) {
    *t = Tensor(DType::kFloat32, {kBatch, kHeads, 0, kDim});
  }
  call.p.query = call.q.view();
  call.p.queries = call.p.positions.queries = call.p.visible.queries = 0;
  const ProblemGradients to = call.gradients();
  call.p.threads = 2;
  fused_backward(call.p, call.out.view(), call.lse.view(), call.dout.view(), {}, to);
  for (const Tensor* t : {&call.dk, &call.dv}) {
    for (int64_t n = 0; n < t->view().numel(); ++n) ASSERT_EQ(t->data<float>()[n], 0.0F);
  }
}

// Both passes of a call on one thread.
void run(ShortCall& call, const Kernels& kernels) {
  call.p.kernels = &kernels;
  call.teams(1);
}

// The numbers of row i of every head.
template <typename F>
void for_each_number(const Tensor& x, int64_t i, F&& f) {
  const TensorView view = x.view();
  for (int64_t head = 0; head < view.shape[0] * view.shape[1]; ++head) {
    for (int64_t d = 0; d < kDim; ++d) f(x.data<float>()[(head * view.shape[2] + i) * kDim + d]);
  }
}

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr int64_t kOdd = 40;  // rows: whole groups of six, and four more

TEST(NotFinite, HiddenKeysChangeNoBit) {
  constexpr int64_t kHidden[] = {5, 20};
  for (const Kernels& kernels : usable_kernels()) {
    SCOPED_TRACE(kernels.name);
    ShortCall finite(kOdd), odd(kOdd);
    for (ShortCall* call : {&finite, &odd}) {
      uint64_t bits = (uint64_t{1} << kOdd) - 1;
      for (const int64_t j : kHidden) bits &= ~(uint64_t{1} << j);
      call->p.visible.key_bits.assign(kBatch, bits);
    }
    for (const int64_t j : kHidden) {
      for_each_number(odd.k, j, [&](float& x) { x = j == kHidden[0] ? kNaN : HUGE_VALF; });
      for_each_number(odd.v, j, [&](float& x) { x = kNaN; });
    }
    run(finite, kernels);
    run(odd, kernels);
    EXPECT_TRUE(same_bits(finite.out, odd.out));
    EXPECT_TRUE(same_bits(finite.dq, odd.dq));
    EXPECT_TRUE(same_bits(finite.dk, odd.dk) && same_bits(finite.dv, odd.dv));
  }
}

std::vector<float> numbers(const Tensor& x, int64_t i) {
  std::vector<float> found;
  for_each_number(x, i, [&](float number) { found.push_back(number); });
  return found;
}

// Even rows see a part of the keys, odd ones all: groups see the same, their rows do not.
TEST(NotFinite, AKeyReachesOnlyTheQueriesThatSeeIt) {
  constexpr int64_t kPart = 10, kKey = 30;
  for (const Kernels& kernels : usable_kernels()) {
    SCOPED_TRACE(kernels.name);
    ShortCall finite(kOdd), odd(kOdd);
    for (ShortCall* call : {&finite, &odd}) {
      for (int64_t i = 0; i < kOdd; ++i) {
        call->p.visible.span.emplace_back(0, i % 2 == 0 ? kPart : kOdd);
      }
    }
    for (Tensor* x : {&odd.k, &odd.v}) for_each_number(*x, kKey, [](float& n) { n = kNaN; });
    run(finite, kernels);
    run(odd, kernels);
    for (int64_t i = 0; i < kOdd; ++i) {
      if (i % 2 == 0) {
        EXPECT_EQ(numbers(finite.out, i), numbers(odd.out, i)) << i;
        EXPECT_EQ(numbers(finite.dq, i), numbers(odd.dq, i)) << i;
      } else {
        for (const float x : numbers(odd.out, i)) ASSERT_TRUE(std::isnan(x)) << i;
      }
    }
  }
}

TEST(NotFinite, AQueryReachesOnlyTheKeysThatItSees) {
  constexpr int64_t kRow = 20;
  for (const Kernels& kernels : usable_kernels()) {
    for (const bool of_query : {true, false}) {
      SCOPED_TRACE(kernels.name);
      ShortCall finite(kOdd), odd(kOdd);
      for (ShortCall* call : {&finite, &odd}) {
        for (int64_t i = 0; i < kOdd; ++i) call->p.visible.span.emplace_back(0, i + 1);
      }
      for_each_number(of_query ? odd.q : odd.dout, kRow, [](float& x) { x = kNaN; });
      run(finite, kernels);
      run(odd, kernels);
      for (int64_t i = 0; i < kOdd; ++i) {
        if (i != kRow) {
          EXPECT_EQ(numbers(finite.dq, i), numbers(odd.dq, i)) << i;
        }
        for (const auto& [want, got] : {std::pair{&finite.dk, &odd.dk}, {&finite.dv, &odd.dv}}) {
          if (i > kRow) {
            EXPECT_EQ(numbers(*want, i), numbers(*got, i)) << i;
          } else {
            for (const float x : numbers(*got, i)) ASSERT_TRUE(std::isnan(x)) << i;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace relpos
