// Accumulators of the backward pass: private to a task, summed over tasks in task order.
#pragma once

#include <vector>

#include "base/parallel.h"
#include "kernels/plan.h"

namespace relpos {

// What one task sums. Cells are those of a plan's whole windows.
struct Sums {
  Buffer<float> dk, dv;                     // [tiles * kTile, Dp], [.., Dvp]
  std::vector<std::vector<double>> bias;    // [bias of the plan][group * row_size]
  std::vector<std::vector<double>> ramp;    // the same, where sloped: [group * 2]
  std::vector<Buffer<float>> rows, values;  // [term][heads of the task, width, padded rank]
  std::vector<std::vector<double>> added;   // [term][group * rank]
  std::vector<double> query_added;          // [group * D]
  Buffer<float> key_bias;                   // [group, tiles * kTile]
  std::vector<Buffer<float>> columns;       // [term][heads of the task, runs, padded rank]
  std::vector<Buffer<float>> factors;       // [term][tiles * kTile, padded rank], of c_j / s2

  Sums(const Plan& plan, const TermGradients& wants);
  int64_t bytes() const;
  void clear();
};

// Sums of one wave of tasks, in task order, into the term gradients.
void reduce_terms(const Plan& plan, const std::vector<Sums>& sums, int64_t first_task,
                  int64_t count, int64_t chunks, int threads, Stopper& stopper, TermGradients& to);
// Sums the chunks of each head's dk and dv and writes them.
void reduce_keys(const Plan& plan, std::vector<Sums>& sums, int64_t first_pair, int64_t pairs,
                 int64_t chunks, int threads, Stopper& stopper, const ProblemGradients& gradients);

}  // namespace relpos
