// What the forward pass leaves of a row's softmax for the backward pass:
//
//   weight = exp2(score - reference) / sum,   score in log2 units, minus the row's shift (shift.h)
//
// The reference is an integer, and the sum is in [1, 2). One float32 log-sum-exp would not be enough:
// its rounding, eps |lse|, would be an error of every weight.
#pragma once

#include "kernels/problem.h"

namespace relpos {

struct SoftmaxState {
  double reference = 0.0;  // a float; -inf: the row sees nothing
  double sum = 1.0;

  // The state for the reference and the sum of weights after a pass over the row's keys.
  static SoftmaxState of(double reference, double sum) noexcept;
  // log2 of the sum of exp2(score); natural units with the shift given back.
  double lse(double shift) const noexcept;
};

// Row (b, h, i) of a state [B, H, Lq, 2], or of an lse [B, H, Lq] in natural units. With an lse every
// weight has a relative error of eps |lse|, where eps is that of its dtype.
SoftmaxState read_softmax(const TensorView& softmax, int64_t b, int64_t h, int64_t i, double shift);
void write_softmax(const TensorView& softmax, int64_t b, int64_t h, int64_t i,
                   const SoftmaxState& state);

}  // namespace relpos
