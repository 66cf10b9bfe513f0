// What the forward pass leaves of a row's softmax for the backward pass:
//
//   weight = exp2(score - reference) / sum,   score in log2 units, less the row's shift (row_shift.h)
//
// The reference is an integer, the sum lies in [1, 2). Together they hold what one float32 log-sum-exp
// cannot: its rounding, eps |lse|, would be an error of every weight.
#pragma once

#include "kernels/problem.h"

namespace relpos {

struct SoftmaxState {
  double reference = 0.0;  // a float; -inf: the row sees nothing; NaN: it sees a NaN
  double sum = 1.0;

  // Of the reference and the sum of weights that a pass over the row's keys has left.
  static SoftmaxState of(double reference, double sum) noexcept;
  // log2 of the sum of exp2(score); natural units with the shift given back.
  double lse(double shift) const noexcept;
};

// Row (b, h, i) of a state [B, H, Lq, 2], or of an lse [B, H, Lq] in natural units. Of the latter
// every weight has a relative error of eps |lse|, eps that of its dtype.
SoftmaxState read_softmax(const TensorView& softmax, int64_t b, int64_t h, int64_t i, double shift);
void write_softmax(const TensorView& softmax, int64_t b, int64_t h, int64_t i,
                   const SoftmaxState& state);

}  // namespace relpos
