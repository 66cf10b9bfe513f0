// Matrices of one part on a grid, for printing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "relpos/dense.h"
#include "relpos/tensor.h"

namespace relpos::cli {

// Throws Error where a matrix of this shape has too many numbers for the tool.
void check_size(const std::vector<int64_t>& shape);
Step as_step(std::string name, Step::Kind kind, const Tensor& tensor);
Step distance_matrix(const Grid& grid);
Step index_matrix(const Part& part, const Grid& grid);
Step dense_matrix(const std::string& name, const Part& part, const Grid& grid, const char* which);
// Throws Error unless there is such a head.
void check_head(int64_t head, int64_t heads);
// Matrix `head` of a [heads, ...] stack.
Step head_of(const Step& stack, int64_t head);

}  // namespace relpos::cli
