// A row's bits are its own: neither what other rows of its group see changes them nor where its reference began,
// nor what the batch rows before it saw.
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/block/kernels.h"
#include "testing/random_problem.h"

namespace relpos {
namespace {

constexpr int64_t kKeys = 150, kDim = 20, kOther = 4;

// Queries that are read where they lie and those of whole blocks.
template <typename F>
void for_each_call(F&& f) {
  for (const Kernels& kernels : usable_kernels()) {
    for (const int64_t queries : {9, 40}) {
      SCOPED_TRACE(testing::Message() << kernels.name << ", " << queries);
      random_terms::PlainCall plain(3, queries, kKeys, kDim), changed(3, queries, kKeys, kDim);
      plain.p.kernels = changed.p.kernels = &kernels;
      plain.forward();
      f(changed);
      changed.forward();
      for (int64_t row = 0; row < queries; ++row) {
        if (row == kOther) continue;
        EXPECT_EQ(changed.lse.data<float>()[row], plain.lse.data<float>()[row]) << row;
        for (int64_t x = row * kDim; x < (row + 1) * kDim; ++x) {
          ASSERT_EQ(changed.out.data<float>()[x], plain.out.data<float>()[x]) << row;
        }
      }
    }
  }
}

TEST(Rows, KeepTheirBitsWithASinkThatHasNoWeight) {
  for_each_call([](random_terms::PlainCall& call) {
    call.p.terms.sinks.push_back(call.trained({1}));
    call.p.terms.sinks.back().multiplier = -1e20;
    call.owned.back().view().store(0, 1.0);
  });
}

TEST(Rows, KeepTheirBitsBesideScoresThatMoveAReference) {
  for_each_call([](random_terms::PlainCall& call) {
    for (int64_t x = kOther * kDim; x < (kOther + 1) * kDim; ++x) {
      call.q.view().store(x, 300.0 * call.q.data<float>()[x]);
    }
  });
}

// One thread computes all heads, a block each, one after another.
TEST(Rows, SeeTheKeysOfTheirOwnBatchRow) {
  constexpr int64_t kBatch = 3, kHeads = 2, kQueries = 40;
  random_terms::PlainCall all(5, kQueries, kKeys, kDim, kBatch, kHeads, kHeads);
  const auto show = [](Problem& p, int64_t b) {
    for (int64_t i = 0; i < kQueries; ++i) {
      p.visible.span.emplace_back(b == 1 ? 70 : 0, kKeys - 9 * b - i);
    }
  };
  all.p.visible.rows = kBatch;
  for (int64_t b = 0; b < kBatch; ++b) show(all.p, b);
  all.forward();
  all.backward();
  for (int64_t b = 0; b < kBatch; ++b) {
    random_terms::PlainCall one(7, kQueries, kKeys, kDim, 1, kHeads, kHeads);
    const auto of_row = [b](const Tensor& batch, const Tensor& row) {
      return batch.data<float>() + b * row.view().numel();
    };
    const auto copy = [&](const Tensor& from, Tensor& to) {
      std::copy_n(of_row(from, to), to.view().numel(), to.data<float>());
    };
    copy(all.q, one.q);
    copy(all.k, one.k);
    copy(all.v, one.v);
    copy(all.dout, one.dout);
    show(one.p, b);
    one.forward();
    one.backward();
    const auto expect_same = [&](const Tensor& found, const Tensor& expected) {
      for (int64_t n = 0; n < expected.view().numel(); ++n) {
        ASSERT_EQ(of_row(found, expected)[n], expected.data<float>()[n]) << b << ", " << n;
      }
    };
    expect_same(all.out, one.out);
    expect_same(all.dq, one.dq);
    expect_same(all.dk, one.dk);
    expect_same(all.dv, one.dv);
  }
}

}  // namespace
}  // namespace relpos
