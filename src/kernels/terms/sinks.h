// Sinks: scores without a value that join the softmax of a row. Reference twins: Head::weigh() and
// HeadGradient::add_sinks().
#pragma once

#include "kernels/block/softmax_state.h"
#include "kernels/terms/term.h"

namespace relpos {

// The sinks of a row as one score, in log2 units and less by the row's shift (natural units), as its
// scores are. -inf: there is none.
double row_sink(const Problem& p, int64_t b, int64_t h, int64_t i, double shift);

// A row's softmax starts with its sink, rounded to float32, as the reference, and with the weight
// 2^(sink - reference) in its sum. Beyond 2^31 the rounding may be so large that this weight overflows or
// vanishes; the weight is 1 there, and the log-sum-exp adds what was rounded off: this. Else 0.
double rounded_off(double sink, double reference);

class Sinks : public Term {
 public:
  struct Sums : TermSums {
    std::vector<double*> sinks;  // [group], of those without queries

    Sums(const Plan& plan, const TermGradients& wants, SumMemory& memory);
  };

  Sinks(const Plan& plan, Workspace&) : Term(plan) {}
  // Adds what a row of a block sends to its sinks: `delta` is <dout, out> - dlse. Returns the sum of it.
  static double send(const Problem& p, const BlockGradients& rows, int row,
                     const SoftmaxState& softmax, double delta, const Sums& sums);
  static void reduce(const Plan& plan, const Sums& sums, int64_t kv_head, TermGradients& to);
};

}  // namespace relpos
