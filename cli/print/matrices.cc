#include "cli/print/matrices.h"

#include <utility>

#include "cli/common.h"
#include "relpos/error.h"

namespace relpos::cli {
namespace {

constexpr int64_t kMostOfAMatrix = int64_t{1} << 26;  // of one matrix: 512 MB as double

}  // namespace

void check_size(const std::vector<int64_t>& shape) {
  check_value(checked_numel(shape, "matrix") <= kMostOfAMatrix, "a matrix of shape ",
              shape_text(shape), " is too large to print, at most ", kMostOfAMatrix,
              " numbers: give smaller --query and --key");
}

Step as_step(std::string name, Step::Kind kind, const Tensor& tensor) {
  Step step{std::move(name), kind, tensor.view().dims(), {}};
  const int64_t count = tensor.view().numel();
  step.values.reserve(static_cast<size_t>(count));
  for (int64_t n = 0; n < count; ++n) step.values.push_back(tensor.view().load(n));
  return step;
}

Step distance_matrix(const Grid& grid) {
  check_size({grid.queries, grid.keys});
  Step step{"distance", Step::Kind::kInteger, {grid.queries, grid.keys}, {}};
  for (int64_t i = 0; i < grid.queries; ++i) {
    for (int64_t j = 0; j < grid.keys; ++j) {
      step.values.push_back(static_cast<double>(j - i - grid.q_offset));
    }
  }
  return step;
}

Step index_matrix(const Part& part, const Grid& grid) {
  check_size({grid.queries, grid.keys});
  const Tensor tensor(DType::kInt64, {grid.queries, grid.keys});
  indices(part, grid, tensor.view());
  return as_step("index", Step::Kind::kInteger, tensor);
}

Step dense_matrix(const std::string& name, const Part& part, const Grid& grid, const char* which) {
  const std::vector<int64_t> shape = dense_shape(part, grid, which);
  check_size(shape);
  const Tensor tensor(DType::kFloat64, shape);
  dense(part, grid, which, tensor.view());
  return as_step(name, Step::Kind::kReal, tensor);
}

void check_head(int64_t head, int64_t heads) {
  check_value(head >= 0 && head < heads, "--head: expected 0 to ", heads - 1, ", got ", head);
}

Step head_of(const Step& stack, int64_t head) {
  const int64_t heads = stack.shape.front();
  check_head(head, heads);
  const auto size = static_cast<int64_t>(stack.values.size()) / heads;
  const auto first = stack.values.begin() + head * size;
  return {stack.name + ", head " + std::to_string(head),
          stack.kind,
          {stack.shape.begin() + 1, stack.shape.end()},
          {first, first + size}};
}

}  // namespace relpos::cli
