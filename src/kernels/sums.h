// Accumulators of the backward pass: private to a task, summed over tasks in task order.
#pragma once

#include <vector>

#include "base/parallel.h"
#include "kernels/plan.h"

namespace relpos {

// What one task sums; null is not wanted. Cells are those of a plan's whole windows.
struct Sums {
  struct Bias {
    double* cells = nullptr;  // [group, row_size]
    double* ramps = nullptr;  // [group, 2], where sloped: past and future
  };
  struct Turns {
    double* queries = nullptr;  // [axes, pairs], as the key head of the task turns
    double* keys = nullptr;  // [tiles, axes, pairs], written by reduce_keys in a head's first task
  };
  struct Rows {
    TableSums table;
    double* added = nullptr;  // [group, rank]
  };
  struct Columns {
    TableSums table;
    float* factors = nullptr;  // [tiles * kTile, padded rank], of c_j / s2
  };
  float *dk = nullptr, *dv = nullptr;  // as of BackwardState
  float* key_bias = nullptr;           // [group, tiles * kTile]
  double* query_added = nullptr;       // [group, D]
  std::vector<double*> sinks;          // [group], of those without queries
  std::vector<Turns> turns;            // of the rotations
  std::vector<Bias> biases;            // as the plan's
  std::vector<Rows> rows;
  std::vector<Columns> columns;
  std::vector<TableSums> values;

  Sums(const Plan& plan, const TermGradients& wants, Workspace& memory);
  void clear();

 private:
  float* floats(bool wanted, int64_t n, Workspace& memory);
  double* doubles(bool wanted, int64_t n, Workspace& memory);

  std::vector<Buffer<float>> floats_;
  std::vector<Buffer<double>> doubles_;
};

// Sums of one wave of tasks, in task order, into the term gradients; after reduce_keys.
void reduce_terms(const Plan& plan, const std::vector<Sums>& sums, int64_t first_task,
                  int64_t count, int64_t chunks, int threads, Stopper& stopper, TermGradients& to);
// Sums the chunks of each head's dk and dv and writes them.
void reduce_keys(const Plan& plan, const std::vector<Sums>& sums, int64_t first_pair, int64_t pairs,
                 int64_t chunks, int threads, Stopper& stopper, const ProblemGradients& gradients);

}  // namespace relpos
