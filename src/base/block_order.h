// The order in which blocks of queries add to what they share, at any number of threads: that of their
// numbers. Blocks are dealt in this order and wait for earlier ones only, so none waits for ever.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/parallel.h"

namespace relpos {

// How far the blocks that share sums are in their tiles.
class BlockOrder {
 public:
  explicit BlockOrder(int64_t blocks)
      : left_(new std::atomic<int64_t>[blocks + 2]), blocks_(blocks) {
    clear();
  }
  void clear() noexcept;

 private:
  static constexpr int64_t kFinished = INT64_MAX;

  std::atomic<int64_t>& finished() noexcept { return left_[blocks_]; }
  std::atomic<int64_t>& unfinished() noexcept { return left_[blocks_ + 1]; }

  // A block has left the tiles before this one. Behind the last block: how many have finished, and a
  // number below which all have, so that a block of many need not ask each of them.
  std::unique_ptr<std::atomic<int64_t>[]> left_;
  int64_t blocks_;
  friend class BlockTurn;
};

// One block of the order, on the worker that computes it.
class BlockTurn {
 public:
  BlockTurn(BlockOrder& order, int64_t block, Stopper& stopper, int worker)
      : order_(order), block_(block), stopper_(stopper), worker_(worker) {}

  // Wait until every earlier block has left tile t, or all tiles, or until one has finished. False: the
  // call is stopped, and nothing may be added.
  bool await_tile(int64_t t);
  bool await_all() { return await_tile(BlockOrder::kFinished - 1); }
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
