// b"[h, class[i,j]]. The rows of a block look the cells of their heads up by bytes of their own; gradients
// are summed by class.
// Reference twins: Head::score_row() and HeadGradient::add_pair_bias().
#pragma once

#include <vector>

#include "kernels/terms/term.h"

namespace relpos {

class PairBiases : public Term {
 public:
  struct Sums : TermSums {
    std::vector<double*> cells;  // [group, or 1 where heads share, classes]

    Sums(const Plan& plan, const TermGradients& wants, SumMemory& memory);
  };

  PairBiases(const Plan& plan, Workspace& memory);
  // Adds a panel for each bias to block.pairs, before those of other kinds.
  void attach(Block& block, const float* queries);
  void start(const BlockGradients& rows, const Sums& sums, const TermSums&);
  // Moves the float cells of a tile into the chunk's doubles.
  void after_tile(const BlockGradients& rows, const KeyTile& tile, int64_t t, const Sums& sums,
                  const TermSums&);
  static void reduce(const Plan& plan, const Sums& sums, int64_t kv_head, TermGradients& to);
  static void reduce_shared(const Plan& plan, const Sums& sums, int64_t kv_head, TermGradients& to);
  static void reduce_shared(const Plan&, const TermSums&, int64_t, TermGradients&) {}
  static int64_t bytes(const Plan& plan);

 private:
  std::vector<Buffer<float>> cells_;  // of each bias [stride], in the backward pass
};

}  // namespace relpos
