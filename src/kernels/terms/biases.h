// b[h, m(delta)] and key_bias[h, j]. Tables and slopes are written out over the distances that occur,
// key biases over the keys. The rows of a block read them there; each block sums gradients in its own
// cells. In the reference path: Head::score_row(), HeadGradient::add_bias() and add_key_bias().
#pragma once

#include <vector>

#include "kernels/sums.h"

namespace relpos {

std::vector<BiasPlan> expand_biases(const Problem& p, std::pair<int64_t, int64_t> range,
                                    const Shifts& shifts, bool direct, Workspace& memory);
void expand_key_biases(Plan& plan, Workspace& memory);
// The largest of each kTile cells; returns true if a bias falls so far that tiles may be skipped.
bool find_peaks(const Plan& plan, std::vector<BiasPlan>& biases, Workspace& memory);

// Sets the pointers of a block's rows to what biases of distances and of keys add to their scores.
void attach_biases(const Plan& plan, Block& block);

// The gradients of the biases of distances, for one worker.
class BiasGradients {
 public:
  BiasGradients(const Plan& plan, Workspace& memory);

  void attach(Block& block, const Sums& sums) const;
  // Moves the block's float cells into the task's doubles, head g of its group.
  void finish(const Block& block, const BackwardState& state, int64_t g, const Sums& sums,
              const TensorView& dlse);

 private:
  const Plan& plan_;
  std::vector<Buffer<float>> cells_;  // [bias][kGroup, row_size]
};

// Adds what a task has summed to the gradients.
void reduce_biases(const Plan& plan, const Sums& sums, int64_t kv_head, TermGradients& to);
void reduce_key_biases(const Plan& plan, const Sums& sums, int64_t b, int64_t kv_head,
                       TermGradients& to);

}  // namespace relpos
