// Every long call asks its token, however its work is spread: each is far longer than the test lets it be.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "relpos/attention.h"
#include "relpos/dense.h"
#include "relpos/error.h"
#include "testing/region.h"

namespace relpos {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int64_t kGigabyte = int64_t{1} << 30;

// Seconds between two answers that only a call exceeds which does not ask, or hardly: an idle machine
// takes 60 ms. Where a small call takes long (under a sanitizer, beside other work), in proportion.
double bound() {
  static const double seconds = [] {
    const Tensor x(DType::kFloat32, {1, 1, 256, 64}), out = x;
    const Clock::time_point start = Clock::now();
    attention(x.view(), x.view(), x.view(), {}, {.path = Path::kReference}, out.view());
    return std::max(5.0, 200 * std::chrono::duration<double>(Clock::now() - start).count());
  }();
  return seconds;
}

// What happens while a call runs that is told to stop after a few answers.
struct Outcome {
  bool cancelled = false;
  double longest_wait = 0.0;  // seconds between two answers, or from the last to the end
};

Outcome cancelled(const std::function<void(CancelToken*)>& call) {
  CancelToken token;
  Outcome outcome;
  int asked = 0;
  Clock::time_point last = Clock::now();
  const auto wait = [&] {
    const Clock::time_point now = Clock::now();
    outcome.longest_wait =
        std::max(outcome.longest_wait, std::chrono::duration<double>(now - last).count());
    last = now;
  };
  token.poll = [&] {
    wait();
    return ++asked >= 3;
  };
  try {
    call(&token);
  } catch (const Error& error) {
    outcome.cancelled = error.kind() == ErrorKind::kCancelled;
  }
  wait();
  return outcome;
}

void expect_cancelled(const char* name, const std::function<void(CancelToken*)>& call) {
  SCOPED_TRACE(name);
  const Outcome outcome = cancelled(call);
  EXPECT_TRUE(outcome.cancelled) << "it ran to its end";
  EXPECT_LT(outcome.longest_wait, bound());
}

class Cancelled : public testing::Test {
 protected:
  // A position whose parameters are zeros.
  Position position(const char* text) const {
    Position parsed = parse_position(text);
    for (Part& part : parsed.parts) {
      for (const ParameterSpec& spec : part.specs()) {
        part.parameters.push_back(zeros.view(spec.shape));
      }
    }
    return parsed;
  }

  const Region zeros{16 * kGigabyte}, output{64 * kGigabyte};
};

TEST_F(Cancelled, DenseForms) {
  const Grid grid{60000, 60000, 0}, wide{1, int64_t{1} << 33, 0}, rows{20000, 20000, 0};
  const Position t5 = position("t5(heads=2)"), shaw = position("shaw(head_dim=16, max_distance=8)");
  const TensorView bias = output.view({2, 60000, 60000});
  const TensorView gathered = output.view({20000, 20000, 16});
  expect_cancelled("dense bias",
                   [&](CancelToken* token) { dense(t5.parts[0], grid, "key", bias, token); });
  expect_cancelled("dense rows",
                   [&](CancelToken* token) { dense(shaw.parts[0], rows, "key", gathered, token); });
  expect_cancelled("steps",
                   [&](CancelToken* token) { steps(t5.parts[0], {15000, 15000, 0}, token); });
  expect_cancelled("indices", [&](CancelToken* token) {
    indices(t5.parts[0], grid, output.view({60000, 60000}, DType::kInt64), token);
  });
  expect_cancelled("indices of one row", [&](CancelToken* token) {
    indices(t5.parts[0], wide, output.view({1, wide.keys}, DType::kInt64), token);
  });
}

TEST_F(Cancelled, DenseGradients) {
  const Grid grid{40000, 40000, 0}, rows{12000, 12000, 0};
  const Position t5 = position("t5(heads=2)"), shaw = position("shaw(head_dim=16, max_distance=8)");
  const Tensor dtable(DType::kFloat32, {32, 2});
  expect_cancelled("of a bias", [&](CancelToken* token) {
    dense_backward(t5.parts[0], grid, "key", zeros.view({2, 40000, 40000}), {dtable.view()}, token);
  });
  std::vector<Tensor> held;
  std::vector<TensorView> gradients;
  for (const TensorView& parameter : shaw.parts[0].parameters) {
    gradients.push_back(held.emplace_back(DType::kFloat32, parameter.dims()).view());
  }
  expect_cancelled("of rows", [&](CancelToken* token) {
    dense_backward(shaw.parts[0], rows, "key", zeros.view({12000, 12000, 16}), gradients, token);
  });
}

TEST_F(Cancelled, Rotations) {
  const Position rope = position("rope(head_dim=64, layout=half)");
  constexpr int64_t kLong = 10'000'000;
  expect_cancelled("tables", [&](CancelToken* token) {
    rotary_tables(rope.parts[0], kLong, 0, output.view({kLong, 64}), output.view({kLong, 64}),
                  token);
  });
  expect_cancelled("rotate", [&](CancelToken* token) {
    rotate(rope.parts[0], zeros.view({kLong, 64}), 0, {}, false, output.view({kLong, 64}), token);
  });
}

// One call of attention.
struct Shape {
  int64_t batch = 1, heads = 2, queries = 0, keys = 0, dim = 16;
};

struct Call {
  const char *name, *position;
  Shape s;
  Options options{};
  bool mask = false;

  Options with(CancelToken* token) const {
    Options own = options;
    own.q_offset = Offset(0);
    own.cancel = token;
    return own;
  }
};

const Options kReference{.path = Path::kReference}, kSerial{.threads = 1};
const Call kFewQueries{"reference, few queries",
                       "rope(head_dim=16, layout=half)",
                       {.queries = 8, .keys = 1'000'000},
                       kReference};

TEST_F(Cancelled, Forward) {
  const Shape square{.queries = 100000, .keys = 100000};
  for (const Call& call : {
           Call{"fused", "t5(heads=2)", square},
           Call{"one thread", "", square, kSerial},
           Call{"reference", "t5(heads=2)", square, kReference},
           Call{"decoding", "alibi(heads=2)", {.batch = 64, .queries = 1, .keys = 2'000'000}},
           kFewQueries,
           Call{"a plan's angles",
                "rope(head_dim=64, layout=half)",
                {.heads = 1, .queries = 1, .keys = 20'000'000, .dim = 64}},
           Call{"a plan's biases",
                "alibi(heads=64)",
                {.heads = 64, .queries = 3'000'000, .keys = 100}},
       }) {
    const Shape& s = call.s;
    const Position where = position(call.position);
    const TensorView q = zeros.view({s.batch, s.heads, s.queries, s.dim});
    const TensorView k = zeros.view({s.batch, s.heads, s.keys, s.dim});
    expect_cancelled(call.name, [&](CancelToken* token) {
      attention(q, k, k, where, call.with(token), output.view(q.dims()));
    });
  }
}

TEST_F(Cancelled, DenseScoresAndWeights) {
  const TensorView q = zeros.view({1, 2, 40000, 16}), lse = zeros.view({1, 2, 40000});
  const TensorView all = output.view({1, 2, 40000, 40000});
  for (const Path path : {Path::kFused, Path::kReference}) {
    const auto with = [path](CancelToken* token) { return Options{.cancel = token, .path = path}; };
    expect_cancelled("scores", [&](CancelToken* token) { scores(q, q, {}, with(token), all); });
    expect_cancelled(
        "weights", [&](CancelToken* token) { attention_weights(q, q, lse, {}, with(token), all); });
  }
}

TEST_F(Cancelled, Backward) {
  const Shape square{.queries = 60000, .keys = 60000};
  for (Call call : {
           Call{"fused", "t5(heads=2)", square},
           Call{"reference", "t5(heads=2)", square, kReference},
           kFewQueries,
           Call{"a mask's gradient", "", {.queries = 20000, .keys = 20000}, {}, true},
       }) {
    const Shape& s = call.s;
    const Position where = position(call.position);
    const TensorView q = zeros.view({s.batch, s.heads, s.queries, s.dim});
    const TensorView k = zeros.view({s.batch, s.heads, s.keys, s.dim});
    const TensorView lse = zeros.view({s.batch, s.heads, s.queries});
    const Region dq(4 * q.numel()), dk(4 * k.numel()), dv(4 * k.numel()), dtable(kGigabyte);
    Gradients gradients{dq.view(q.dims()), dk.view(k.dims()), dv.view(k.dims()), {}, {}};
    for (const Part& part : where.parts) {
      gradients.parameters.emplace_back();
      for (const TensorView& parameter : part.parameters) {
        gradients.parameters.back().push_back(dtable.view(parameter.dims()));
      }
    }
    if (call.mask) {
      call.options.attn_mask = zeros.view({s.batch, s.heads, s.queries, s.keys});
      gradients.attn_mask = output.view(call.options.attn_mask.dims());
    }
    expect_cancelled(call.name, [&](CancelToken* token) {
      attention_backward(q, k, k, q, lse, q, {}, where, call.with(token), gradients);
    });
  }
}

TEST_F(Cancelled, GradientOfScores) {
  const TensorView q = zeros.view({1, 2, 20000, 16}), dscores = zeros.view({1, 2, 20000, 20000});
  Gradients gradients;
  gradients.query = output.view(q.dims());
  expect_cancelled("scores_backward", [&](CancelToken* token) {
    scores_backward(q, q, dscores, {}, {.cancel = token}, gradients);
  });
}

TEST_F(Cancelled, WhatAPollThrowsComesOut) {
  const TensorView q = zeros.view({1, 2, 60000, 16});
  CancelToken token;
  token.poll = []() -> bool { throw std::runtime_error("of the poll"); };
  for (const Path path : {Path::kFused, Path::kReference}) {
    EXPECT_THROW(attention(q, q, q, {}, {.cancel = &token, .path = path}, output.view(q.dims())),
                 std::runtime_error);
  }
  const Position t5 = position("t5(heads=2)");
  EXPECT_THROW(dense(t5.parts[0], {60000, 60000, 0}, "key", output.view({2, 60000, 60000}), &token),
               std::runtime_error);
}

}  // namespace
}  // namespace relpos
