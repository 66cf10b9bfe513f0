// Checks the arguments of a public call, lowers its position, and gives the kernels their Problem.
#pragma once

#include <string>
#include <vector>

#include "kernels/problem.h"
#include "relpos/attention.h"

namespace relpos {

inline constexpr int64_t kPositionLimit = int64_t{1} << 61;  // distances then fit int64 with room

void check_position(int64_t position, const char* name);

// Throws the error about a q_offset that must be said; `why` completes "not given, and ...".
[[noreturn]] void refuse_to_guess(const std::string& why);

struct Call {
  Problem problem;
  std::vector<Terms> part_terms;         // what each part lowered to, in order
  std::vector<std::vector<bool>> wants;  // [part][parameter]
  int64_t value_dim = 0;
};

// `value` may be not given (scores, weights). `wants` empty: no gradient is wanted.
Call make_call(const TensorView& query, const TensorView& key, const TensorView& value,
               const Position& position, const Options& options,
               std::vector<std::vector<bool>> wants = {});

// A view broadcast to `shape` by zero strides; throws Error naming the argument.
TensorView broadcast_view(const TensorView& view, const std::vector<int64_t>& shape,
                          const char* name);

// Throws unless `view` has this shape and dtype and may be written.
void check_output(const TensorView& view, const std::vector<int64_t>& shape, DType dtype,
                  const char* name);
void check_input(const TensorView& view, const std::vector<int64_t>& shape, const char* name);

// The parameters of one part against its specs.
void check_parameters(const Part& part);

// Sends term gradients through every part's pull_back and writes the wanted parameters.
void pull_back_parts(const Call& call, const Position& position, const TermGradients& gradients,
                     const std::vector<std::vector<TensorView>>& parameters);

// Writes contiguous values in the order of a strided view, converting to its dtype.
void write_values(const std::vector<double>& values, const TensorView& view);

}  // namespace relpos
