#include "kernels/reference/reference.h"

#include <algorithm>
#include <cmath>

#include "base/parallel.h"
#include "kernels/block/log2.h"
#include "kernels/block/softmax_state.h"
#include "kernels/plan/row_shift.h"
#include "kernels/reference/head_gradient.h"
#include "kernels/reference/reference_head.h"
#include "values/term_kinds.h"
#include "values/turns.h"

namespace relpos {
namespace {

using namespace reference;  // NOLINT: the rows of reference_head.h

constexpr int64_t kWave = 8;  // tasks whose private table gradients exist at one time

// Makes split sums of all gradients.
void split_all(const Terms& terms, TermGradients& sums) {
  for_each_number(terms, sums, [](auto&&, auto&&, auto& values, HeadAxis) { split(values); });
}

// Adds the split sums of a part to others.
void add_all(const Terms& terms, TermGradients& sum, TermGradients& part) {
  std::vector<std::vector<double>*> parts;
  for_each_number(terms, part,
                  [&](auto&&, auto&&, auto& values, HeadAxis) { parts.push_back(&values); });
  auto from = parts.begin();
  for_each_number(terms, sum, [&](auto&&, auto&&, auto& values, HeadAxis) {
    settle(**from);
    in_pieces(std::ssize(**from), [&](int64_t first, int64_t end) {
      accumulate(values, first, 1.0, (*from)->data() + first, end - first);
    });
    ++from;
  });
}

// Runs body(head, gradient) for each (b, kv head), with table gradients private to a task and summed
// in task order: the same bits at any thread count.
template <typename F>
void for_each_head_gradient(const Problem& p, const ProblemGradients& gradients, F&& body) {
  const Model model(p);
  Stopper stopper(p.cancel);
  const int threads = gradients.mask != nullptr ? 1 : p.threads;
  const int64_t tasks = p.batch * p.kv_heads;
  TermGradients& all = *gradients.terms;
  split_all(p.terms, all);
  if (gradients.mask != nullptr) split(*gradients.mask);
  for (int64_t first = 0; first < tasks; first += kWave) {
    const int64_t count = std::min(kWave, tasks - first);
    std::vector<TermGradients> own;
    for (int64_t n = 0; n < count; ++n) {
      split_all(p.terms, own.emplace_back(TermGradients::zeros(p.terms)));
    }
    parallel_for(count, threads, stopper, [&](int64_t n, int worker) {
      const int64_t task = first + n;
      Head head(model, task / p.kv_heads, task % p.kv_heads, stopper, worker);
      HeadGradient gradient(head, gradients, own[n]);
      for (int64_t g = 0; g < p.group(); ++g) {
        for (int64_t i = 0; i < p.queries && !stopper.stopped(worker); ++i) {
          head.select(head.hk * p.group() + g, i);
          body(head, gradient);
        }
      }
      gradient.store();
    });
    stopper.check();
    for (TermGradients& part : own) {
      check_cancelled();
      add_all(p.terms, all, part);
    }
  }
  for_each_number(p.terms, all, [](auto&&, auto&&, auto& sums, HeadAxis) { settle(sums); });
  if (gradients.mask != nullptr) settle(*gradients.mask);
}

template <typename F>
void for_each_row(const Problem& p, F&& body) {
  const Model model(p);
  Stopper stopper(p.cancel);
  parallel_for(p.batch * p.kv_heads, p.threads, stopper, [&](int64_t task, int worker) {
    Head head(model, task / p.kv_heads, task % p.kv_heads, stopper, worker);
    for (int64_t g = 0; g < p.group(); ++g) {
      for (int64_t i = 0; i < p.queries && !stopper.stopped(worker); ++i) {
        head.select(head.hk * p.group() + g, i);
        body(head);
      }
    }
  });
  stopper.check();
}

}  // namespace

void reference_forward(const Problem& p, const ForwardResults& to) {
  const Shifts shifts(p);
  for_each_row(p, [&](Head& x) {
    Chained sum(x.Dv);
    std::vector<double> row(x.Dv);
    int64_t keys = 0;
    x.score_row();
    x.weigh();
    if (x.top != kHidden) {
      x.for_visible([&](int64_t j) {
        x.value_row(j, row.data());
        add_scaled(sum.recent.data(), x.weight[j] * x.kept(j), row.data(), x.Dv);
        if (++keys % kTile == 0) sum.join();
      });
    }
    sum.join();
    if (std::isnan(x.sum)) sum.sum.assign(x.Dv, x.sum);  // of a sink, maybe, and no key
    store_row(to.out, x.b, x.h, x.i, x.Dv, sum.sum.data());
    if (to.lse.given()) {
      const double lse = x.top == kHidden ? kHidden : x.top + std::log(x.sum);
      to.lse.store(to.lse.offset({x.b, x.h, x.i}), lse);
    }
    if (to.softmax.given()) {
      const double shift = shifts.of(x.b, x.h, x.i).total();
      write_softmax(to.softmax, x.b, x.h, x.i,
                    SoftmaxState::of(to_log2(x.top - shift), x.top == kHidden ? 0.0 : x.sum));
    }
  });
}

void reference_backward(const Problem& p, const TensorView& out, const TensorView& lse,
                        const TensorView& dout, const TensorView& dlse,
                        const ProblemGradients& gradients) {
  for_each_head_gradient(p, gradients, [&](Head& x, HeadGradient& gradient) {
    std::vector<double> go(x.Dv), row(go.size());
    load_row(out, x.b, x.h, x.i, x.Dv, row.data());
    load_row(dout, x.b, x.h, x.i, x.Dv, go.data());
    double mean = dot(go.data(), row.data(), x.Dv);
    if (dlse.given()) mean -= dlse.at({x.b, x.h, x.i});
    x.score_row();
    if (lse.given()) {
      x.weigh_under(lse.at({x.b, x.h, x.i}));
    } else {
      x.weigh();
    }
    std::fill(x.dscore.begin(), x.dscore.end(), 0.0);
    if (x.top != kHidden) {
      x.for_visible([&](int64_t j) {
        x.value_row(j, row.data());
        const double dp = dot(go.data(), row.data(), x.Dv) * x.kept(j);
        x.dscore[j] = x.weight[j] * (dp - mean);
      });
      gradient.add_values(go);
    }
    gradient.add_sinks(mean);
    gradient.add_row();
  });
}

void reference_weights(const Problem& p, const TensorView& weights) {
  for_each_row(p, [&](Head& x) {
    x.score_row();
    x.weigh();
    in_pieces(p.keys, [&](int64_t from, int64_t to) {
      for (int64_t j = from; j < to; ++j) {
        weights.store(weights.offset({x.b, x.h, x.i, j}), x.weight[j] * x.kept(j));
      }
    });
  });
}

void reference_scores(const Problem& p, const TensorView& out) {
  for_each_row(p, [&](Head& x) {
    x.score_row();
    store_row(out, x.b, x.h, x.i, p.keys, x.score.data());
  });
}

void reference_scores_backward(const Problem& p, const TensorView& dscores,
                               const ProblemGradients& gradients) {
  for_each_head_gradient(p, gradients, [&](Head& x, HeadGradient& gradient) {
    if (p.softcap != 0.0) x.score_row();  // for the slopes
    load_row(dscores, x.b, x.h, x.i, p.keys, x.dscore.data());
    gradient.add_row();
  });
}

}  // namespace relpos
