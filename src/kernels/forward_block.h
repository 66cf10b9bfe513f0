// A block of the forward pass: its running softmax and its results.
#pragma once

#include <vector>

#include "kernels/query_block.h"
#include "kernels/schedule.h"
#include "kernels/terms/value_tables.h"

namespace relpos {

inline constexpr int64_t kDecodeQueries = 16;  // up to so many queries decode() computes the call

class ForwardBlock : public QueryBlock {
 public:
  ForwardBlock(const Plan& plan, Workspace& memory);

  ForwardState state;

  void start();
  // Runs advance() over all tiles of a block that has started, then adds the value tables. If outputs
  // have overflowed, it does so once more.
  template <typename F>
  void run(F&& advance) {
    advance();
    values_.add(block, state.o);
    if (!overflowed()) return;
    start_again();
    advance();
    values_.add(block, state.o);
    finish_again();
  }
  // Advances the state over tiles [t, t + count), at most kTilesAtATime.
  void forward(const KeyTile* tiles, int64_t t, int64_t count);
  // The same for one tile whose rows are read in place: the products p become weights.
  void weigh(const KeyTile& tile, int64_t t, float* p) {
    plan_.kernels.weigh(block, state, tile, t, p);
  }
  // Prepares the row tables for tiles [t, t + count), for weigh().
  void before(int64_t t, int64_t count) { row_tables_.before(block, t, count); }
  // The tile of [first, end) to start with; the others follow in ascending order.
  int64_t start_tile(int64_t first, int64_t end) const {
    return skip_.start_tile(block, first, end);
  }
  float sum(int row) const noexcept;  // of weights

 private:
  void clear_sums();
  // True if a row has a finite sum of weights but an output that is not finite: a value is NaN or Inf,
  // or so large that its product with weights of up to 2^60 overflows.
  bool overflowed() const;
  // Starts again with references so high that no finite value overflows, and afterwards restores the
  // rows that had not overflowed.
  void start_again();
  void finish_again();

  ValueTables values_;
  Buffer<float> m_, l_, o_;
  // m, l and o of all rows at start_again(), and which of them had overflowed.
  std::vector<float> first_m_, first_l_, first_o_;
  bool overflowed_[kRows] = {};
};

// The results of queries [i, i + rows) from their references m [rows], sums of weights l [rows] and
// unnormalised outputs o, `stride` apart, which it may overwrite.
void finish_rows(const Plan& plan, int64_t b, int64_t h, int64_t i, int rows, const float* m,
                 const float* l, float* o, int64_t stride, const ForwardResults& to);

// The forward pass of up to kDecodeQueries queries, and its scratch alone.
void decode(const Plan& plan, int threads, Stopper& stopper, const ForwardResults& to);
void lay_out_decode(const Plan& plan, int threads, Workspace& memory);

}  // namespace relpos
