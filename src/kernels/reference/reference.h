// The plain twin of every fast path: double, one row at a time, O(Lk) scratch, no tricks.
#pragma once

#include "kernels/problem.h"

namespace relpos {

// The backward pass and the weights normalise their scores anew: they need nothing of the forward
// pass but `out`. A given `lse` is of these keys and maybe others: weights are exp(score - lse).
void reference_forward(const Problem& problem, const ForwardResults& to);
void reference_backward(const Problem& problem, const TensorView& out, const TensorView& lse,
                        const TensorView& dout, const TensorView& dlse,
                        const ProblemGradients& gradients);
void reference_weights(const Problem& problem, const TensorView& weights);
void reference_scores(const Problem& problem, const TensorView& out);
void reference_scores_backward(const Problem& problem, const TensorView& dscores,
                               const ProblemGradients& gradients);

}  // namespace relpos
