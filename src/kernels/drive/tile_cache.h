// Packed tiles of keys and values.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "base/parallel.h"
#include "kernels/plan/plan.h"

namespace relpos {

// Packs of one head above this are not kept: every block packs the tiles that it reads anew, which
// costs 2 to 4 % and keeps memory independent of the number of keys.
inline constexpr int64_t kPackedBytes = int64_t{16} << 20;

// The tiles of `heads` heads, each packed once by the first worker that needs it; or, where they are
// not kept or `heads` is 0, kTilesAtATime for each worker.
class TileCache {
 public:
  TileCache(const Plan& plan, int64_t heads, int threads, Workspace& memory)
      : plan_(plan),
        kept_(heads > 0 && plan.tiles * plan.tile_floats * 4 <= kPackedBytes),
        room_(kept_ ? plan.tiles : kTilesAtATime),
        tiles_((kept_ ? heads : threads) * room_),
        states_(new std::atomic<uint8_t>[kept_ ? tiles_.size() : 0]) {
    for (int64_t n = 0; n < (kept_ ? heads : threads); ++n) {
      packs_.push_back(memory.take<float>(room_ * plan.tile_floats));
      positions_.push_back(memory.take<int64_t>(plan.p.positions.consecutive ? 0 : room_ * kTile));
    }
    for (int n = 0; n < threads; ++n) {
      rows_.push_back(memory.take<float>(plan.packing_floats()));
    }
  }

  // Forgets what a head's slot holds. No worker may be reading it.
  void start(int64_t slot) {
    for (int64_t t = 0; kept_ && t < room_; ++t) {
      states_[slot * room_ + t].store(kEmpty, std::memory_order_relaxed);
    }
  }
  // Calls body(tiles, first tile, count) over tiles [first, end) of a (b, kv head) pair until stopped.
  template <typename F>
  void read(int64_t slot, int64_t pair, int64_t first, int64_t end, Stopper& stopper, int worker,
            F&& body) {
    for (int64_t t = first; t < end && !stopper.stopped(worker); t += kTilesAtATime) {
      const int64_t count = std::min(kTilesAtATime, end - t);
      if (kept_) {
        pack_missing(slot, pair, t, count, worker);
      } else {
        for (int64_t n = 0; n < count; ++n) pack(worker, n, pair, t + n, worker);
      }
      body(&tiles_[kept_ ? slot * room_ + t : worker * room_], t, count);
    }
  }

 private:
  static constexpr uint8_t kEmpty = 0, kPacking = 1, kPacked = 2;

  // Packs those of tiles [t, t + count) that nobody has begun, then waits for the others: workers that
  // begin a head together share its packing.
  void pack_missing(int64_t slot, int64_t pair, int64_t t, int64_t count, int worker) {
    for (bool all = false; !all;) {
      all = true;
      for (int64_t n = t; n < t + count; ++n) {
        std::atomic<uint8_t>& state = states_[slot * room_ + n];
        uint8_t found = state.load(std::memory_order_acquire);
        if (found == kEmpty &&
            state.compare_exchange_strong(found, kPacking, std::memory_order_acquire)) {
          pack_claimed(slot, pair, n, state, worker);
          found = kPacked;
        }
        all = all && found == kPacked;
      }
      if (!all) std::this_thread::yield();
    }
  }
  void pack_claimed(int64_t slot, int64_t pair, int64_t t, std::atomic<uint8_t>& state,
                    int worker) {
    try {
      pack(slot, t, pair, t, worker);
    } catch (...) {  // or others would wait for it
      state.store(kEmpty, std::memory_order_release);
      throw;
    }
    state.store(kPacked, std::memory_order_release);
  }
  // Tile t of a pair into place n of a slot.
  void pack(int64_t slot, int64_t n, int64_t pair, int64_t t, int worker) {
    tiles_[slot * room_ + n] = plan_.pack_tile(
        pair / plan_.p.kv_heads, pair % plan_.p.kv_heads, t,
        packs_[slot].get() + n * plan_.tile_floats,
        plan_.p.positions.consecutive ? nullptr : positions_[slot].get() + n * kTile,
        rows_[worker].get());
  }

  const Plan& plan_;
  const bool kept_;
  const int64_t room_;  // tiles of a slot
  std::vector<KeyTile> tiles_;
  std::unique_ptr<std::atomic<uint8_t>[]> states_;
  std::vector<Buffer<float>> packs_, rows_;
  std::vector<Buffer<int64_t>> positions_;
};

}  // namespace relpos
