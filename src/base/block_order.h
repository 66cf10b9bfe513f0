// The order in which blocks of queries add to what they share, at any number of threads: that of their
// numbers. Blocks are dealt in this order and wait for earlier ones only, so none waits for ever.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/parallel.h"

namespace relpos {

// How far the blocks of one (b, kv head) pair are in its tiles.
class BlockOrder {
 public:
  explicit BlockOrder(int64_t blocks)
      : left_(new std::atomic<int64_t>[blocks + 1]), blocks_(blocks) {}
  void clear() noexcept;

 private:
  static constexpr int64_t kFinished = INT64_MAX;

  // A block has left the tiles before this one; behind the last block: how many have finished.
  std::unique_ptr<std::atomic<int64_t>[]> left_;
  int64_t blocks_;
  friend class BlockTurn;
};

// One block of the order, on the worker that computes it.
class BlockTurn {
 public:
  BlockTurn(BlockOrder& order, int64_t block, Stopper& stopper, int worker)
      : order_(order), block_(block), stopper_(stopper), worker_(worker) {}

  // Wait until every earlier block has left tile t, or until one has finished. False: the call is
  // stopped, and nothing may be added.
  bool await_tile(int64_t t);
  bool await_block(int64_t block);
  // This block adds no more to the tiles before `t`, or to any. True: nor does any other of the order, and
  // what they all have added is visible here.
  void leave_before(int64_t t) noexcept;
  bool finish() noexcept;

 private:
  bool await(int64_t block, int64_t more_than);

  BlockOrder& order_;
  const int64_t block_;
  Stopper& stopper_;
  const int worker_;
  int64_t unfinished_ = 0;  // all blocks of lower numbers have finished
};

}  // namespace relpos
