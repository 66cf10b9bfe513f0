// The fused path: tiles, online softmax, SIMD target chosen at run time. The contract is that of
// reference.h.
#pragma once

#include <string>

#include "kernels/problem.h"

namespace relpos {

// False if a term needs the reference path (a decaying rotation at explicit positions) or the dtype is
// float64. `why`, if given, receives the reason.
bool fused_supports(const Problem& problem, std::string* why = nullptr);

// `packs`: the scores have the bits of those of the backward pass, at any number of queries.
void fused_forward(const Problem& problem, const ForwardResults& to, bool packs = false);
// `softmax`: as read_softmax() takes it.
void fused_backward(const Problem& problem, const TensorView& out, const TensorView& softmax,
                    const TensorView& dout, const TensorView& dlse,
                    const ProblemGradients& gradients);
// Dense weights after dropout where `softmax` is given, else dense scores.
void fused_emit(const Problem& problem, const TensorView& softmax, const TensorView& dense);

// Peak bytes of scratch, by the formula of docs/memory.md.
int64_t fused_workspace_bytes(const Problem& problem, bool backward);

}  // namespace relpos
