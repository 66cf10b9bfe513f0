// Keys divided among tasks, where queries alone are too few of them: each chunk of keys leaves a running
// softmax of the rows of a block, and the last chunk that is done merges them, in the order of the keys.
#pragma once

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "kernels/drive/forward_block.h"

namespace relpos {

class KeyChunks {
 public:
  // Chunks of `tiles` tiles. The rows of a block are among the `rows` of a group: of a head, or of the
  // heads that share a key head.
  KeyChunks(const Plan& plan, int64_t tiles, int64_t groups, int64_t rows, Workspace& memory);

  // Tiles of a chunk that makes about `wanted` tasks of blocks of queries, `blocks` for each batch row:
  // at least `least`.
  static int64_t tiles_for(const Plan& plan, int64_t blocks, int64_t wanted, int64_t least);

  int64_t count() const noexcept { return count_; }
  // The tiles among [first, end) that belong to a chunk.
  std::pair<int64_t, int64_t> range(int64_t chunk, int64_t first, int64_t end) const noexcept {
    return {std::max(first, chunk * tiles_), std::min(end, (chunk + 1) * tiles_)};
  }
  // Takes what a chunk has left of a block of a group; writes it where it is the only one.
  void take(ForwardBlock& x, int64_t group, int64_t block, int64_t chunk, const ForwardResults& to);
  // Where all chunks of a block are done, merges and writes them; `x` holds its rows.
  void merge(const ForwardBlock& x, int64_t group, int64_t block, const ForwardResults& to);

 private:
  // o[Dvp] and (m, l) behind it: the state of one row after one chunk.
  float* at(int64_t group, int64_t chunk, int64_t row) const noexcept {
    return memory_.get() + ((group * count_ + chunk) * rows_ + row) * (plan_.Dvp + 2);
  }
  void merge_row(int64_t group, int64_t row) const;

  const Plan& plan_;
  const int64_t tiles_, count_, rows_, blocks_;
  Buffer<float> memory_;
  std::vector<std::atomic<int64_t>> done_;  // chunks of each block
};

}  // namespace relpos
