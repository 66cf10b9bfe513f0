// b[h, m(delta)] and key_bias[h, j]. A block's rows read them where the plan has written them
// (plan/bias_plan.h); its gradients are summed in cells of its own.
// Reference twins: Head::score_row(), HeadGradient::add_bias() and add_key_bias().
#pragma once

#include <vector>

#include "kernels/terms/gradient_sums.h"

namespace relpos {

// Points the rows of a block at what biases of distances and of keys add to their scores.
void attach_biases(const Plan& plan, Block& block);

// One worker's gradients of the biases of distances.
class BiasGradients {
 public:
  BiasGradients(const Plan& plan, Workspace& memory);

  void attach(Block& block, const Sums& sums) const;
  // Moves the block's float cells into the chunk's doubles, head g of its group. `row_sums`: of the
  // gradients of the rows' scores.
  void finish(const Block& block, const BackwardState& state, int64_t g, const Sums& sums,
              const double* row_sums);

 private:
  const Plan& plan_;
  std::vector<Buffer<float>> cells_;  // [bias][kGroup, row_size]
};

// What a chunk has summed, or the keys of a pair [group, tiles * kTile], into the gradients.
void reduce_biases(const Plan& plan, const Sums& sums, int64_t kv_head, TermGradients& to);
void reduce_key_biases(const Plan& plan, const float* sums, int64_t b, int64_t kv_head,
                       TermGradients& to);

}  // namespace relpos
