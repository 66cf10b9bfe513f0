// Which floating-point mode the float32 kernels compute in.
#pragma once

#include "base/float_mode.h"
#include "kernels/problem.h"

namespace relpos {

// Flushes denormals where that cannot be seen. Weights of every size meet in a call, and on many CPUs
// each denormal costs as much as 150 products: a backward pass with linear biases takes up to 3 times as long. But where
// all values or gradients of a (b, kv head) pair are tiny, denormals are what its results are made of:
// then they are kept. `dout` is given in a backward pass. Depends on nothing but what the pair's queries
// see.
FloatControl float_control(const Problem& p, int64_t b, int64_t kv_head,
                           const TensorView& dout = {});

}  // namespace relpos
