// Biases by classes of pairs, written out for a call.
#pragma once

#include <cstdint>
#include <vector>

#include "base/buffer.h"
#include "base/workspace.h"
#include "kernels/plan/distance_tables.h"
#include "kernels/problem.h"

namespace relpos {

struct PairBiasPlan {
  int64_t heads = 1, classes = 0;  // heads 1: shared
  int64_t stride = 0;              // from head to head
  Buffer<float> cells;             // [heads, stride] times log2(e); 0 past the last class
};

std::vector<PairBiasPlan> expand_pair_biases(const Problem& p, Workspace& memory);
// The tables of rows by classes of pairs: an entry is a class.
std::vector<TablePlan> expand_pair_rows(const Problem& p, bool backward, Workspace& memory);

}  // namespace relpos
