// Calls that hold some of the heads of a layer (Options::first_head, all_heads).
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "relpos/attention.h"
#include "testing/schemes.h"

namespace relpos {
namespace {

// Frequencies of key heads: a call of some heads turns as they do among all, and its gradients stand at
// their places.
TEST(SomeHeads, OfTermsThatKeyHeadsHave) {
  const int64_t heads = 4, kv_heads = 2, length = 5, dim = 4;
  const std::vector<double> freqs{0.3,  -1.1, 0.8,  0.2,
                                  -0.5, 1.7,  -0.4, 0.9};  // [2, kv_heads, dim / 2]
  const plain::Made mixed("rope_mixed(heads=4, head_dim=4, grid=[3], kv_heads=2)", {freqs});
  std::mt19937_64 random(3);
  std::normal_distribution<double> normal;
  const auto drawn = [&](const std::vector<int64_t>& shape) {
    Tensor made(DType::kFloat64, shape);
    for (int64_t n = 0; n < made.view().numel(); ++n) made.view().store(n, normal(random));
    return made;
  };
  const Tensor q = drawn({1, heads, length, dim}), k = drawn({1, kv_heads, length, dim}),
               dscore = drawn({1, heads, length, length});
  const auto heads_of = [](const Tensor& all, int64_t first, int64_t count) {
    TensorView view = all.view();
    view.data = all.data<double>() + first * view.strides[1];
    view.shape[1] = count;
    return view;
  };
  Options options;
  options.enable_gqa = true;
  const Tensor whole(DType::kFloat64, dscore.view().dims()), of_whole(DType::kFloat64, {2, 2, 2});
  scores(q.view(), k.view(), mixed.position, options, whole.view());
  Gradients gradients;
  gradients.parameters = {{of_whole.view()}};
  scores_backward(q.view(), k.view(), dscore.view(), mixed.position, options, gradients);
  options.all_heads = heads;
  std::vector<double> sum(8, 0.0);
  for (const int64_t own : {1, 2}) {  // two slices share a key head, or each has its own
    std::fill(sum.begin(), sum.end(), 0.0);
    for (int64_t first = 0; first < heads; first += own) {
      options.first_head = first;
      const Tensor some(DType::kFloat64, {1, own, length, length}),
          of_some(DType::kFloat64, {2, 2, 2});
      const TensorView query = heads_of(q, first, own), key = heads_of(k, first / 2, 1);
      scores(query, key, mixed.position, options, some.view());
      for (int64_t n = 0; n < some.view().numel(); ++n) {
        EXPECT_EQ(some.view().load(n), heads_of(whole, first, own).load(n));
      }
      gradients.parameters = {{of_some.view()}};
      scores_backward(query, key, heads_of(dscore, first, own), mixed.position, options, gradients);
      for (int64_t n = 0; n < 8; ++n) sum[n] += of_some.view().load(n);
    }
    for (int64_t n = 0; n < 8; ++n) EXPECT_NEAR(sum[n], of_whole.view().load(n), 1e-12);
  }
}

}  // namespace
}  // namespace relpos
