// The gradient of a mask that batch rows, heads, queries or keys share: what each pair would have alone,
// added up in double in the order of batch rows, heads, blocks, tiles, rows and keys, at any number of
// threads.
#include "kernels/drive/mask_order.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "base/sanitized.h"
#include "base/thread_grant.h"
#include "relpos/cancel.h"
#include "relpos/error.h"
#include "testing/random_results.h"

namespace relpos {
namespace {

using namespace random_terms;  // NOLINT: this test's cases

// Whether axes of a mask [B, H, Lq, Lk] are shared.
using Shared = std::array<bool, 4>;

std::string name_of(const Shared& shared) {
  std::string name;
  for (size_t axis = 0; axis < 4; ++axis) name += shared[axis] ? '1' : "BHQK"[axis];
  return name;
}

// Gives the case a mask, drawn, some of whose numbers hide.
void draw_mask(Case& c, const Shared& shared, uint64_t seed) {
  Rng rng(seed);
  const std::vector<int64_t> whole{c.p.batch, c.p.heads, c.p.queries, c.p.keys};
  std::vector<int64_t> shape = whole;
  for (size_t axis = 0; axis < 4; ++axis) shape[axis] = shared[axis] ? 1 : whole[axis];
  c.mask = float_tensor(rng, shape);
  for (int64_t n = 0; n < c.mask.view().numel(); ++n) {
    if (chance(rng, 0.1)) c.mask.data<float>()[n] = -HUGE_VALF;
  }
  TensorView& mask = c.p.visible.mask = c.mask.view();
  for (size_t axis = 0; axis < 4; ++axis) {
    mask.shape[axis] = whole[axis];
    if (shared[axis]) mask.strides[axis] = 0;
  }
}

// The same numbers, each pair its own.
Case with_own_mask(const Case& c) {
  Case own = c;
  const TensorView from = c.p.visible.mask;
  own.mask = Tensor(DType::kFloat32, {c.p.batch, c.p.heads, c.p.queries, c.p.keys});
  for (int64_t n = 0; n < own.mask.view().numel(); ++n) {
    const int64_t j = n % c.p.keys, i = n / c.p.keys % c.p.queries,
                  head = n / c.p.keys / c.p.queries;
    own.mask.view().store(n, from.load(from.offset({head / c.p.heads, head % c.p.heads, i, j})));
  }
  own.p.visible.mask = own.mask.view();
  return own;
}

// The sums of what the pairs have, in their order.
std::vector<double> summed(const Case& c, const Results& own) {
  const Problem& p = c.p;
  const TensorView& to = c.p.visible.mask;
  const int64_t numbers = c.mask.view().numel();
  // A number that one pair alone has is its gradient, which may be -0.
  const double none = numbers == p.batch * p.heads * p.queries * p.keys ? -0.0 : 0.0;
  std::vector<double> sums(static_cast<size_t>(numbers), none);
  for (int64_t head = 0; head < p.batch * p.heads; ++head) {
    for (int64_t block = blocks_of_head(p) - 1; block >= 0; --block) {
      for (int64_t t = 0; t < p.tiles(); ++t) {
        for (int64_t i = block * kRows; i < std::min(p.queries, (block + 1) * kRows); ++i) {
          for (int64_t j = t * kTile; j < std::min(p.keys, (t + 1) * kTile); ++j) {
            sums[static_cast<size_t>(to.offset({head / p.heads, head % p.heads, i, j}))] +=
                static_cast<double>(own.mask_rows[(head * p.queries + i) * p.keys + j]);
          }
        }
      }
    }
  }
  return sums;
}

void expect_sums_in_order(Case& c, const std::string& note) {
  Case own = with_own_mask(c);
  own.p.threads = 1;
  Results want = run_fused(own);
  want.mask = summed(c, want);
  want.mask_rows.clear();
  const std::vector<int> all = few_cases() ? std::vector{2, 8} : std::vector{1, 2, 5, 8};
  for (const int threads : all) {
    c.p.threads = threads;
    const Results got = run_fused(c);
    expect_same(got, want, note + ", threads " + std::to_string(threads));
    if (testing::Test::HasFatalFailure()) return;
  }
}

bool is_divided(const Case& c) {
  Problem p = c.p;
  p.threads = 2;
  return on_fused_path(c) && useful_threads(p) > 1;
}

// Masks of all kinds with whatever else is drawn: groups of heads, offsets, padding, tiles that nobody
// sees, dropout, softcaps, trained terms; on units, too.
TEST(MaskOrder, IsTheSameAtAnyNumberOfThreads) {
  int kind = 0;
  for_cases(cases(32), drawn({2, 2, 3}), is_divided, [&](Case& c, uint64_t seed) {
    const int of = ++kind * 5 % 16;  // of the first four, too, each bit is set and not
    const Shared shared{(of & 1) != 0, (of & 2) != 0, (of & 4) != 0, (of & 8) != 0};
    if (kind % 3 == 0) {
      c = narrowed(std::move(c));
      c.p.kernels = &unit_kernels().front();
    }
    draw_mask(c, shared, seed);
    expect_sums_in_order(c, name_of(shared) + ", seed " + std::to_string(seed));
  });
}

// A call whose batch rows share a mask; of three blocks each.
struct SharedCall : PlainCall {
  static constexpr int64_t kBatch = 12, kHeads = 4, kLength = 200;

  Tensor mask = Tensor(DType::kFloat32, {1, kHeads, kLength, kLength});
  std::vector<double> sums;

  explicit SharedCall(int threads)
      : PlainCall(5, kLength, kLength, 16, kBatch, kHeads, 2),
        sums(static_cast<size_t>(mask.view().numel())) {
    p.visible.mask = mask.view();
    p.visible.mask.shape[0] = kBatch;
    p.visible.mask.strides[0] = 0;
    p.threads = threads;
    forward();
  }
  void backward() {
    ProblemGradients to = gradients();
    to.mask = &sums;
    to.mask_index = p.visible.mask;
    fused_backward(p, out.view(), lse.view(), dout.view(), {}, to);
  }
};

struct OfThePoll {};

// Whoever waits for a turn ends, too, where others will not take theirs.
TEST(MaskOrder, EndsWithTheCall) {
  for (const int threads : {1, 2, 8}) {
    for (const int polls : {0, 1, 3, 10, 30}) {
      if (few_cases() && (polls == 1 || polls == 10)) continue;
      for (const bool throws : {false, true}) {
        SharedCall call(threads);
        int asked = 0;
        CancelToken token;
        token.interval = std::chrono::milliseconds(0);
        token.poll = [&]() -> bool {
          if (asked++ < polls) return false;
          if (throws) throw OfThePoll();
          return true;
        };
        call.p.cancel = &token;
        bool threw = false;
        try {
          call.backward();
        } catch (const OfThePoll&) {
          threw = true;
          EXPECT_TRUE(throws);
        } catch (const Error&) {
          threw = true;
          EXPECT_FALSE(throws);
        }
        EXPECT_EQ(threw, asked > polls);
      }
    }
  }
}

// A pair is not begun before a lower one that nobody computes.
TEST(MaskOrder, EndsWhereFewThreadsAreGranted) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer takes address space and threads of its own";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto body = [] {
    constexpr int kMany = 64;
    SharedCall alone(1), many(1);
    alone.backward();
    const rlimit few{3, 3};
    constexpr uid_t kNobody = 65534;
    if (setrlimit(RLIMIT_NPROC, &few) != 0) std::_Exit(3);
    if (geteuid() == 0 && setuid(kNobody) != 0) std::_Exit(7);  // root has no such limit
    if (granted_threads(kMany) >= kMany) std::_Exit(6);
    alarm(60);
    many.p.threads = kMany;
    many.backward();
    std::_Exit(alone.sums == many.sums ? 0 : 5);
  };
  EXPECT_EXIT(body(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace relpos
