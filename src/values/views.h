// Checks of the views and positions that a call gets, in one wording, and how results are written.
#pragma once

#include <ostream>
#include <vector>

#include "relpos/cancel.h"
#include "relpos/tensor.h"

namespace relpos {

// For error texts, written only where a check fails: a call's overhead is a few microseconds.
struct Dims {
  const std::vector<int64_t>& sizes;
};
std::ostream& operator<<(std::ostream& out, const Dims& dims);
struct Shape {
  const TensorView& view;
};
std::ostream& operator<<(std::ostream& out, const Shape& shape);

inline constexpr int64_t kPositionLimit = int64_t{1} << 61;  // distances then fit int64 with room

void check_position(int64_t position, const char* name);

void check_input(const TensorView& view, const std::vector<int64_t>& shape, const char* name);
// Throws unless `view` has this shape and dtype and may be written.
void check_output(const TensorView& view, const std::vector<int64_t>& shape, DType dtype,
                  const char* name);

// A view broadcast to `shape` by zero strides; throws Error naming the argument.
TensorView broadcast_view(const TensorView& view, const std::vector<int64_t>& shape,
                          const char* name);

// to[n] = element `at` + n stride of the view, counted in elements, for n in [0, count).
void load_run(const TensorView& view, int64_t at, int64_t count, int64_t stride, double* to);
// Writes contiguous values in the order of a strided view, converting to its dtype.
void write_values(const std::vector<double>& values, const TensorView& view);
void write_zeros(const TensorView& view, int threads, CancelToken* cancel);

}  // namespace relpos
