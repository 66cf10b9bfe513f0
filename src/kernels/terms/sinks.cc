#include "kernels/terms/sinks.h"

#include <algorithm>
#include <cmath>

#include "kernels/block/log2.h"

namespace relpos {

double row_sink(const Problem& p, int64_t b, int64_t h, int64_t i, double shift) {
  double top = -HUGE_VAL, sum = 0.0;
  p.for_each_sink(b, h, i, [&](size_t, double score) { top = larger_or_nan(top, score); });
  if (p.terms.sinks.size() <= 1 || !std::isfinite(top)) return to_log2(top - shift);
  p.for_each_sink(b, h, i, [&](size_t, double score) { sum += std::exp(score - top); });
  return to_log2(top + std::log(sum) - shift);
}

double rounded_off(double sink, double reference) {
  constexpr double kMost = 60.0;
  const bool stands = static_cast<float>(sink) == static_cast<float>(reference);
  return stands && std::fabs(sink - reference) > kMost ? sink - reference : 0.0;
}

Sinks::Sums::Sums(const Plan& plan, const TermGradients& wants, SumMemory& memory) {
  for (size_t n = 0; n < wants.sinks.size(); ++n) {
    const bool of_heads = plan.p.terms.sinks[n].view.rank == 1;
    sinks.push_back(memory.doubles(of_heads && wanted(wants.sinks[n]), plan.p.group()));
  }
}

double Sinks::send(const Problem& p, const BlockGradients& rows, int row,
                   const SoftmaxState& softmax, double delta, const Sums& sums) {
  if (p.terms.sinks.empty()) return 0.0;
  const Block& block = rows.block;
  const int64_t b = block.batch, h = block.head[row], i = block.index[row];
  const double shift = block.score_shift[row];
  double total = 0.0;
  const double reference =
      softmax.reference + rounded_off(row_sink(p, b, h, i, shift), softmax.reference);
  p.for_each_sink(b, h, i, [&](size_t n, double score) {
    const double at = to_log2(score - shift);
    const double weight = at == -HUGE_VAL ? 0.0 : std::exp2(at - reference) / softmax.sum;
    const double gradient = weight == 0.0 ? 0.0 : -weight * delta;
    total += gradient;
    std::vector<double>& own = rows.to.sinks[n];
    if (own.empty()) return;
    if (p.terms.sinks[n].view.rank == 3) {
      own[(b * p.heads + h) * p.queries + i] = gradient * p.terms.sinks[n].multiplier;
    } else {
      sums.sinks[n][rows.g] += gradient;
    }
  });
  return total;
}

void Sinks::reduce(const Plan& plan, const Sums& sums, int64_t kv_head, TermGradients& to) {
  const int64_t group = plan.p.group();
  for (size_t n = 0; n < to.sinks.size(); ++n) {
    const double by = plan.p.terms.sinks[n].multiplier;
    for (int64_t g = 0; sums.sinks[n] != nullptr && g < group; ++g) {
      to.sinks[n][kv_head * group + g] += sums.sinks[n][g] * by;
    }
  }
}

}  // namespace relpos
