// A block of the forward pass: its running softmax, its output, and what leaves it.
#pragma once

#include <vector>

#include "kernels/drive/query_block.h"
#include "kernels/drive/schedule.h"

namespace relpos {

inline constexpr int64_t kDecodeQueries = 16;  // up to here decode() takes the call

class ForwardBlock : public QueryBlock {
 public:
  ForwardBlock(const Plan& plan, Workspace& memory);

  ForwardState state;

  // `with_sinks`: they are summed here, else in another block of the same rows.
  void start(bool with_sinks = true);
  // Runs advance() over all tiles of a block that has started, then adds what terms give. Once more
  // where outputs have overflowed.
  template <typename F>
  void run(F&& advance) {
    advance();
    add_terms();
    if (!overflowed()) return;
    start_again();
    advance();
    add_terms();
    finish_again();
  }
  // Advances the state over tiles [t, t + count), at most kTilesAtATime.
  void forward(const KeyTile* tiles, int64_t t, int64_t count);
  // The same for one tile of rows read in place: their products p become weights.
  void weigh(const KeyTile& tile, int64_t t, float* p) {
    plan_.kernels.weigh(block, state, tile, t, p);
  }
  // Before weigh() of tiles [t, t + count).
  void before(int64_t t, int64_t count) { bring(t, count); }
  // Where to start among tiles [first, end); the rest follows in ascending order.
  int64_t start_tile(int64_t first, int64_t end) const {
    return skip_.start_tile(block, first, end);
  }
  float sum(int row) const noexcept;  // of weights

 private:
  // Adds what terms have summed of the weights to the output.
  void add_terms() {
    terms_.for_each([&]<typename Kind>(Kind& kind) { kind.add(block, state.l, state.o); });
  }
  // Clears all sums but those of the sinks.
  void clear_sums();
  // True where the output of a row whose sum of weights is finite is not: a value is NaN or Inf, or so
  // large that weights of up to 2^60 overflow.
  bool overflowed() const;
  // Starts again from references so high that no finite value overflows, and then gives the other
  // rows back what they had.
  void start_again();
  void finish_again();

  Buffer<float> m_, l_, o_;
  double sinks_[kRows];  // row_sink()
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
