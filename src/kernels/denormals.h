// Which floating-point mode the float32 kernels compute in.
#pragma once

#include "base/float_mode.h"
#include "kernels/problem.h"

namespace relpos {

// Flushes denormals to zero where that does not matter. On many CPUs each denormal costs as much as 150
// products, and a call has weights of every size: a backward pass with linear biases takes up to 3
// times as long with denormals. But where all values or gradients of a (b, kv head) pair are tiny, its
// results are denormal; then they are kept. `dout` is given in a backward pass. The choice depends only
// on what the queries of the pair see.
FloatControl float_control(const Problem& p, int64_t b, int64_t kv_head,
                           const TensorView& dout = {});

}  // namespace relpos
