// The order in which blocks of queries add to the gradient of a mask: those that share an element do so
// batch row after batch row, then head after head, then in the order of their numbers, tile by tile. A
// block waits for lower pairs, and for lower numbers of its own pair, alone: as they are dealt
// (schedule.h), none waits for ever.
#pragma once

#include <optional>
#include <vector>

#include "base/block_order.h"
#include "kernels/drive/schedule.h"

namespace relpos {

// One block's.
class MaskTurn {
 public:
  MaskTurn(const BlockTurn& turn, bool shares_tiles) : turn_(turn), shares_tiles_(shares_tiles) {}

  // As of BlockTurn. A number that all keys share is that of every tile.
  bool take(int64_t t) { return shares_tiles_ ? turn_.await_all() : turn_.await_tile(t); }
  void leave_before(int64_t t) noexcept { turn_.leave_before(t); }
  void finish() noexcept { turn_.finish(); }

 private:
  BlockTurn turn_;
  bool shares_tiles_;
};

class MaskOrder {
 public:
  MaskOrder(const Problem& p, const ProblemGradients& gradients) : blocks_(blocks_of_head(p)) {
    if (gradients.mask == nullptr) return;
    const auto& strides = gradients.mask_index.strides;
    const int64_t sizes[] = {p.batch, p.heads, blocks_};
    int64_t orders = 1, blocks = 1;
    for (int axis = 2; axis >= 0; --axis) {
      const bool shared = strides[static_cast<size_t>(axis)] == 0;
      (shared ? block_[axis] : order_[axis]) = shared ? blocks : orders;
      (shared ? blocks : orders) *= sizes[axis];
    }
    shares_tiles_ = strides[3] == 0;
    orders_.reserve(static_cast<size_t>(orders));
    for (int64_t n = 0; n < orders; ++n) orders_.emplace_back(blocks);
  }

  // Whether blocks may wait for those of other pairs.
  bool waits() const noexcept { return !orders_.empty(); }
  // Empty where the mask's gradient is not summed.
  std::optional<MaskTurn> turn(const PackedBlock& at, Stopper& stopper, int worker) {
    if (orders_.empty()) return {};
    const int64_t place[] = {at.batch, at.head, at.number % blocks_};
    int64_t order = 0, block = 0;
    for (int axis = 0; axis < 3; ++axis) {
      order += order_[axis] * place[axis];
      block += block_[axis] * place[axis];
    }
    return MaskTurn(BlockTurn(orders_[static_cast<size_t>(order)], block, stopper, worker),
                    shares_tiles_);
  }

 private:
  // How many places in `orders_`, and of blocks in an order, lie between two batch rows, heads and
  // blocks of a head. One of the two is 0.
  int64_t order_[3] = {}, block_[3] = {};
  bool shares_tiles_ = false;
  const int64_t blocks_;  // of a head
  std::vector<BlockOrder> orders_;
};

}  // namespace relpos
