#include "kernels/terms/sinks.h"

#include <algorithm>
#include <cmath>

#include "kernels/block.h"

namespace relpos {

double row_sink(const Problem& p, int64_t b, int64_t h, int64_t i, double shift) {
  double top = -HUGE_VAL, sum = 0.0;
  if (!p.adds_sinks) return top;
  for (const TermData& sink : p.terms.sinks) {
    const double score = sink_score(sink, b, h, i);
    if (!(score <= top)) top = score;  // NaN stays
  }
  if (p.terms.sinks.size() <= 1 || !std::isfinite(top)) return to_log2(top - shift);
  for (const TermData& sink : p.terms.sinks) sum += std::exp(sink_score(sink, b, h, i) - top);
  return to_log2(top + std::log(sum) - shift);
}

double add_sink_gradients(const Problem& p, int64_t b, int64_t h, int64_t i, int64_t g,
                          double shift, const SoftmaxState& softmax, double delta, const Sums& sums,
                          TermGradients& to) {
  double total = 0.0;
  for (size_t n = 0; n < p.terms.sinks.size() && p.adds_sinks; ++n) {
    const TermData& sink = p.terms.sinks[n];
    const double score = to_log2(sink_score(sink, b, h, i) - shift);
    const double weight =
        score == -HUGE_VAL ? 0.0 : std::exp2(score - softmax.reference) / softmax.sum;
    const double gradient = weight == 0.0 ? 0.0 : -weight * delta;
    total += gradient;
    if (to.sinks[n].empty()) continue;
    if (sink.view.rank == 3) {
      to.sinks[n][(b * p.heads + h) * p.queries + i] = gradient * sink.multiplier;
    } else {
      sums.sinks[n][g] += gradient;
    }
  }
  return total;
}

void reduce_sinks(const Plan& plan, const Sums& sums, int64_t kv_head, TermGradients& to) {
  const int64_t group = plan.p.group();
  for (size_t n = 0; n < to.sinks.size(); ++n) {
    const double by = plan.p.terms.sinks[n].multiplier;
    for (int64_t g = 0; sums.sinks[n] != nullptr && g < group; ++g) {
      to.sinks[n][kv_head * group + g] += sums.sinks[n][g] * by;
    }
  }
}

}  // namespace relpos
