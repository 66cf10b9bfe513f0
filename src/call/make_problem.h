// Checks the arguments of a public call, binds its position, and gives the kernels their Problem.
#pragma once

#include <string>
#include <vector>

#include "binding/head_slice.h"
#include "binding/recipe.h"
#include "kernels/problem.h"
#include "relpos/attention.h"

namespace relpos {

// Throws the error about a q_offset that must be said; `why` completes "not given, and ...".
[[noreturn]] void refuse_to_guess(const std::string& why);

struct Call {
  Problem problem;
  CallSizes sizes;                       // of all heads
  std::vector<std::vector<bool>> wants;  // [part][parameter]
  HeadSlice heads;                       // of the position's, those of the call
  Terms whole;                           // where they are not all: the terms of all of them
};

// `value` may be not given (scores, weights). `wants` empty: no gradient is wanted. shapes_only: of
// CallSizes.
Call make_call(const TensorView& query, const TensorView& key, const TensorView& value,
               const Position& position, const Options& options,
               std::vector<std::vector<bool>> wants = {}, bool shapes_only = false);

}  // namespace relpos
