// Where two stacks of matrices agree, and by how much they differ.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "relpos/dense.h"

namespace relpos::cli {

// Equal, or apart by at most 4 half units in the last place of float32.
bool agrees(double a, double b);

struct HeadDifference {
  int64_t pairs = 0, equal = 0;
  double largest = 0.0;  // of the absolute differences; infinite where only one number is finite
  int64_t query = 0, key = 0;  // where it occurs first
};

// a - b of two stacks [heads, queries, keys] of one shape: 0 where the numbers are the same.
Step difference(const Step& a, const Step& b);
// Compares each head.
std::vector<HeadDifference> compare_heads(const Step& a, const Step& b);
// The stack with `heads` copies of its only head, or as it is. Throws Error where it has others.
Step with_heads(Step stack, int64_t heads);
// The runs of indices at which two curves agree, first and last.
std::vector<std::pair<int64_t, int64_t>> agreeing_runs(const std::vector<double>& a,
                                                       const std::vector<double>& b);

}  // namespace relpos::cli
