// A row's bits are its own: neither what other rows of its group see changes them nor where its reference began.
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace relpos
