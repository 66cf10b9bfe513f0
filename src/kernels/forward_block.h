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
  // Runs advance() over all tiles of a block that has started, then adds the value tables. Once more
  // where outputs have overflowed.
  template <typename F>
  void run(F&& advance) {
    advance();
    add_value_tables();
    if (!overflowed()) return;
    start_again();
    advance();
    add_value_tables();
    finish_again();
  }
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
  void clear_sums();
  // True where the output of a row whose sum of weights is finite is not: a value is NaN or Inf, or so
  // large that weights of up to 2^60 overflow.
  bool overflowed() const;
  // Starts again from references so high that no finite value overflows, and then gives the other
  // rows back what they had.
  void start_again();
  void finish_again();

  const Plan& plan_;
  const TileKernels& kernels_;
  ColumnScratch columns_;
  TileSkip skip_;
  Buffer<float> m_, l_, o_, row_;
  std::vector<Buffer<float>> weights_;
  std::vector<Cut> cuts_;
  // m, l and o of all rows at start_again(), and which of them had overflowed.
  std::vector<float> first_m_, first_l_, first_o_;
  bool overflowed_[kRows] = {};
};

// The results of queries [i, i + rows) from their references m [rows], sums of weights l [rows] and
// unnormalised outputs o, `stride` apart, which it may overwrite.
void finish_rows(const Plan& plan, int64_t b, int64_t h, int64_t i, int rows, const float* m,
                 const float* l, float* o, int64_t stride, const ForwardResults& to);

// The forward pass of up to kDecodeQueries queries.
void decode(const Plan& plan, const TileKernels& kernels, int threads, Stopper& stopper,
            const ForwardResults& to);
int64_t decode_bytes(const Plan& plan, int threads);

}  // namespace relpos
