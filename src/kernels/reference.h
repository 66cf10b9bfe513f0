// The reference path: the same function as the fused path, computed plainly in double, one row at a
// time, with O(Lk) scratch.
#pragma once

#include "kernels/problem.h"

namespace relpos {

// The backward pass and the weights compute the softmax again; of the forward pass they need only
// `out`.
void reference_forward(const Problem& problem, const ForwardResults& to);
void reference_backward(const Problem& problem, const TensorView& out, const TensorView& dout,
                        const TensorView& dlse, const ProblemGradients& gradients);
void reference_weights(const Problem& problem, const TensorView& weights);
void reference_scores(const Problem& problem, const TensorView& out);
void reference_scores_backward(const Problem& problem, const TensorView& dscores,
                               const ProblemGradients& gradients);

}  // namespace relpos
