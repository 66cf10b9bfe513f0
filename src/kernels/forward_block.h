// A block of the forward pass: its running softmax, its output, and what leaves it.
#pragma once

#include <vector>

#include "kernels/block_setup.h"
#include "kernels/columns.h"
#include "kernels/schedule.h"
#include "kernels/skip.h"

namespace relpos {

inline constexpr int64_t kDecodeQueries = 16;  // up to here decode() takes the call

// Forward state of a block, and the histogram of weights that value tables need.
class ForwardScratch : public BlockScratch {
 public:
  ForwardScratch(const Plan& plan, const TileKernels& kernels);

  float* row() const noexcept { return row_.get(); }  // [max(Dp, Dvp)], for whoever needs one
  void start();
  // Advances the state over tiles [t, t + count).
  void forward(const KeyTile* tiles, int64_t t, int64_t count);
  // Where to start among tiles [first, end); the rest follows in ascending order.
  int64_t start_tile(int64_t first, int64_t end) const {
    return skip_.start_tile(block, first, end);
  }
  // Adds the value tables under their weights to o.
  void add_value_tables();
  float sum(int row) const noexcept;  // of weights

  static int64_t floats(const Plan& plan);

 private:
  const Plan& plan_;
  const TileKernels& kernels_;
  ColumnScratch columns_;
  TileSkip skip_;
  Buffer<float> m_, l_, o_, row_;
  std::vector<Buffer<float>> weights_;
  std::vector<Cut> cuts_;
};

// out and lse of queries [i, i + rows) from their references m [rows], sums of weights l [rows] and
// unnormalised outputs o, `stride` apart, which it may overwrite.
void finish_rows(const Problem& p, int64_t b, int64_t h, int64_t i, int rows, const float* m,
                 const float* l, float* o, int64_t stride, const TensorView& out,
                 const TensorView& lse);

// The forward pass of up to kDecodeQueries queries.
void decode(const Plan& plan, const TileKernels& kernels, int threads, Stopper& stopper,
            const TensorView& out, const TensorView& lse);
int64_t decode_bytes(const Plan& plan, int threads);

}  // namespace relpos
