// b[h, m(delta)]. The rows of a block read them where the plan has written them (plan/bias_plan.h); their
// gradients are summed in cells of a worker's own.
// Reference twins: Head::score_row() and HeadGradient::add_bias().
#pragma once

#include <vector>

#include "kernels/terms/term.h"

namespace relpos {

class Biases : public Term {
 public:
  struct Sums : TermSums {
    struct Bias {
      double* cells;  // [group, row_size], of the plan's whole window
      double* ramps;  // [group, 2], where sloped: past and future
    };
    std::vector<Bias> biases;  // as the plan's

    Sums(const Plan& plan, const TermGradients& wants, SumMemory& memory);
  };

  Biases(const Plan& plan, Workspace& memory);
  void attach(Block& block, const float* queries);
  void before(Block& block, int64_t t, int64_t count);
  void start(const BlockGradients& rows, const Sums& sums, const TermSums&);
  // Moves the block's float cells into the chunk's doubles.
  void finish(const BlockGradients& rows, const Sums& sums);
  static void reduce(const Plan& plan, const Sums& sums, int64_t kv_head, TermGradients& to);
  static int64_t bytes(const Plan& plan);

 private:
  static constexpr int64_t kOwnStride = kSlidingCells + 2 * kPad;

  // What a worker holds of a bias. Where a call has few queries, that is what the next tiles read of it, in
  // cells of its own or inside the table, whose numbers the rows multiply.
  struct OwnCells {
    Buffer<float> cells;         // [group, kOwnStride]
    Cut cut;                     // of the window
    float unit[kRows];           // the table's multiplier times log2(e)
    float far_cells[2 * kRows];  // of Panel
  };
  void find_far_cells(const Block& block, int64_t n, Panel& panel);
  bool read_in_place(const Block& block, size_t n, const Cut& to, Panel& panel);
  std::vector<OwnCells> own_;         // of each bias
  int64_t own_head_[kRows];           // of a row: its head, counted from the block's first
  std::vector<Buffer<float>> cells_;  // of each bias [kGroup, row_size], in the backward pass
};

}  // namespace relpos
