// Builders of the matrices that `steps` returns. Those over pairs can be cancelled.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/parallel.h"
#include "relpos/dense.h"

namespace relpos::notebooks {

inline Step empty_step(std::string name, Step::Kind kind, std::vector<int64_t> shape) {
  Step step{std::move(name), kind, std::move(shape), {}};
  step.values.reserve(static_cast<size_t>(checked_numel(step.shape, "steps")));
  return step;
}

// cell(row, column): [rows, columns].
template <typename Cell>
Step matrix(std::string name, Step::Kind kind, int64_t rows, int64_t columns, Cell cell) {
  Step step = empty_step(std::move(name), kind, {rows, columns});
  CancelTicks tick;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      tick();
      step.values.push_back(static_cast<double>(cell(i, j)));
    }
  }
  return step;
}

// cell(query position, key position), a whole number: [Lq, Lk].
template <typename Cell>
Step pairwise(std::string name, const Grid& grid, Cell cell) {
  return matrix(std::move(name), Step::Kind::kInteger, grid.queries, grid.keys,
                [&](int64_t i, int64_t j) { return cell(grid.q_offset + i, j); });
}

// start, start + 1, ...: [count].
inline Step arange(std::string name, int64_t start, int64_t count) {
  Step step = matrix(std::move(name), Step::Kind::kInteger, 1, count,
                     [&](int64_t, int64_t j) { return start + j; });
  step.shape = {count};
  return step;
}

// cell(x) of every element of another step.
template <typename Cell>
Step each(std::string name, Step::Kind kind, const Step& from, Cell cell) {
  Step step = empty_step(std::move(name), kind, from.shape);
  CancelTicks tick;
  for (double x : from.values) {
    tick();
    step.values.push_back(static_cast<double>(cell(x)));
  }
  return step;
}

// `indices` and `dense` of the part's keys.
Step index_step(std::string name, const Part& part, const Grid& grid);
Step dense_step(std::string name, const Part& part, const Grid& grid);

}  // namespace relpos::notebooks
