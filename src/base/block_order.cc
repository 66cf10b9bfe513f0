#include "base/block_order.h"

#include <algorithm>
#include <thread>

namespace relpos {

void BlockOrder::clear() noexcept {
  for (int64_t n = 0; n < blocks_ + 2; ++n) left_[n].store(0, std::memory_order_relaxed);
}

bool BlockTurn::await(int64_t block, int64_t more_than) {
  const std::atomic<int64_t>& left = order_.left_[block];
  while (left.load(std::memory_order_acquire) <= more_than) {
    if (stopper_.stopped(worker_)) return false;
    std::this_thread::yield();
  }
  return true;
}

bool BlockTurn::await_tile(int64_t t) {
  const int64_t known = order_.unfinished().load(std::memory_order_acquire);
  unfinished_ = std::max(unfinished_, known);
  for (int64_t block = unfinished_; block < block_; ++block) {
    if (!await(block, t)) return false;
    const bool finished =
        order_.left_[block].load(std::memory_order_acquire) == BlockOrder::kFinished;
    if (finished && block == unfinished_) ++unfinished_;
  }
  if (unfinished_ > known) order_.unfinished().store(unfinished_, std::memory_order_release);
  return true;
}

bool BlockTurn::await_block(int64_t block) {
  return block < 0 || await(block, BlockOrder::kFinished - 1);
}

void BlockTurn::leave_before(int64_t t) noexcept {
  order_.left_[block_].store(t, std::memory_order_release);
}

bool BlockTurn::finish() noexcept {
  leave_before(BlockOrder::kFinished);
  return order_.finished().fetch_add(1, std::memory_order_acq_rel) + 1 == order_.blocks_;
}

}  // namespace relpos
