// Builders of the matrices that `steps` returns.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/parallel.h"
#include "relpos/scheme.h"

namespace relpos::common {

inline Step empty_step(std::string name, Step::Kind kind, std::vector<int64_t> shape) {
  Step step{std::move(name), kind, std::move(shape), {}};
  step.values.reserve(static_cast<size_t>(checked_numel(step.shape, "steps")));
  return step;
}

// start, start + 1, ...: [count].
inline Step arange(std::string name, int64_t start, int64_t count) {
  Step step = empty_step(std::move(name), Step::Kind::kInteger, {count});
  CancelTicks tick;
  for (int64_t i = 0; i < count; ++i) {
    tick();
    step.values.push_back(static_cast<double>(start + i));
  }
  return step;
}

// cell(query position, key position): [Lq, Lk].
template <typename Cell>
Step pairwise(std::string name, Step::Kind kind, const Grid& grid, Cell cell) {
  Step step = empty_step(std::move(name), kind, {grid.queries, grid.keys});
  CancelTicks tick;
  for (int64_t i = 0; i < grid.queries; ++i) {
    for (int64_t j = 0; j < grid.keys; ++j) {
      tick();
      step.values.push_back(static_cast<double>(cell(grid.q_offset + i, j)));
    }
  }
  return step;
}

// cell(head, query position, key position): [H, Lq, Lk].
template <typename Cell>
Step pairwise_per_head(std::string name, int64_t heads, const Grid& grid, Cell cell) {
  Step step = empty_step(std::move(name), Step::Kind::kReal, {heads, grid.queries, grid.keys});
  CancelTicks tick;
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < grid.queries; ++i) {
      for (int64_t j = 0; j < grid.keys; ++j) {
        tick();
        step.values.push_back(cell(h, grid.q_offset + i, j));
      }
    }
  }
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

}  // namespace relpos::common
