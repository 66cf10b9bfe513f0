// Checks the arguments of a public call, binds its position, and gives the kernels their Problem.
#pragma once

#include <string>
#include <vector>

#include "kernels/problem.h"
#include "recipe.h"
#include "relpos/attention.h"

namespace relpos {

// Throws the error for a missing q_offset; `why` completes "not given, and ...".
[[noreturn]] void refuse_to_guess(const std::string& why);

struct Call {
  Problem problem;
  CallSizes sizes;
  std::vector<std::vector<bool>> wants;  // [part][parameter]
};

// `value` is optional (scores, weights). An empty `wants` means that no gradient is wanted.
Call make_call(const TensorView& query, const TensorView& key, const TensorView& value,
               const Position& position, const Options& options,
               std::vector<std::vector<bool>> wants = {});

}  // namespace relpos
