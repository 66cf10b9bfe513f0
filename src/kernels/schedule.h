// How a call is cut into tasks: heads, each packed by whoever first needs a tile of it, and blocks of
// queries within a head.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "kernels/plan.h"

namespace relpos {

// Packs of one head above this are not kept: every block packs the tiles that it reads anew, which
// costs 2 to 4 % and keeps memory independent of the number of keys.
inline constexpr int64_t kPackedBytes = int64_t{16} << 20;

// One thread where the whole call is shorter than waking another (about 2 MFLOP).
inline int useful_threads(const Problem& p) {
  const double flops = 2.0 * static_cast<double>(p.batch * p.heads) *
                       static_cast<double>(p.queries) * static_cast<double>(p.keys) *
                       static_cast<double>(p.head_dim + p.value_dim);
  return flops < 2e6 ? 1 : p.threads;
}

inline bool keeps_packs(const Plan& plan) {
  return plan.tiles * plan.tile_floats() * 4 <= kPackedBytes;
}

// Memory of `count` packed tiles.
class TileMemory {
 public:
  TileMemory(const Plan& plan, int64_t count)
      : plan_(plan),
        floats_(count * plan.tile_floats()),
        positions_(plan.p.positions.consecutive ? 0 : count * kTile),
        row_(std::max(plan.Dp, plan.Dvp)),
        tiles_(static_cast<size_t>(count)) {}

  // Packs tile t of a (b, kv head) pair into slot n; `row` as of pack_tile.
  void pack(int64_t pair, int64_t t, int64_t n, float* row) {
    tiles_[static_cast<size_t>(n)] = plan_.pack_tile(
        pair / plan_.p.kv_heads, pair % plan_.p.kv_heads, t,
        floats_.get() + n * plan_.tile_floats(),
        plan_.p.positions.consecutive ? nullptr : positions_.get() + n * kTile, row);
  }
  const KeyTile* tiles() const noexcept { return tiles_.data(); }
  float* row() const noexcept { return row_.get(); }  // scratch for pack()
  static int64_t floats(const Plan& plan, int64_t count) {
    return count * plan.tile_floats() + std::max(plan.Dp, plan.Dvp);
  }

 private:
  const Plan& plan_;
  Buffer<float> floats_;
  Buffer<int64_t> positions_;
  Buffer<float> row_;
  std::vector<KeyTile> tiles_;
};

// The tiles of one head, each packed once, by the first worker that needs it.
class PackedHead {
 public:
  explicit PackedHead(const Plan& plan)
      : memory_(plan, plan.tiles),
        states_(new std::atomic<uint8_t>[static_cast<size_t>(plan.tiles)]) {
    tiles_ = plan.tiles;
  }

  // Forgets what it holds. No worker may be reading it.
  void start(int64_t pair) {
    pair_ = pair;
    for (int64_t t = 0; t < tiles_; ++t) states_[t].store(kEmpty, std::memory_order_relaxed);
  }
  const KeyTile* tiles(int64_t first, int64_t end, float* row) {
    for (int64_t t = first; t < end; ++t) {
      std::atomic<uint8_t>& state = states_[t];
      while (state.load(std::memory_order_acquire) != kPacked) {
        uint8_t empty = kEmpty;
        if (!state.compare_exchange_strong(empty, kPacking, std::memory_order_acquire)) {
          std::this_thread::yield();
          continue;
        }
        try {
          memory_.pack(pair_, t, t, row);
        } catch (...) {  // or others would wait for it
          state.store(kEmpty, std::memory_order_release);
          throw;
        }
        state.store(kPacked, std::memory_order_release);
      }
    }
    return memory_.tiles() + first;
  }

 private:
  static constexpr uint8_t kEmpty = 0, kPacking = 1, kPacked = 2;
  TileMemory memory_;
  std::unique_ptr<std::atomic<uint8_t>[]> states_;
  int64_t tiles_ = 0, pair_ = 0;
};

// How one worker reads the tiles of a head, kept or packed as it goes.
class TileReader {
 public:
  explicit TileReader(const Plan& plan)
      : kept_(keeps_packs(plan)), memory_(plan, kept_ ? 0 : kTilesAtATime) {}

  // Calls body(tiles, first tile, count) over [first, end) until stopped.
  template <typename F>
  void read(PackedHead* head, int64_t pair, int64_t first, int64_t end, Stopper& stopper,
            int worker, F&& body) {
    for (int64_t t = first; t < end && !stopper.stopped(worker); t += kTilesAtATime) {
      const int64_t count = std::min(kTilesAtATime, end - t);
      if (kept_) {
        body(head->tiles(t, t + count, memory_.row()), t, count);
        continue;
      }
      for (int64_t n = 0; n < count; ++n) memory_.pack(pair, t + n, n, memory_.row());
      body(memory_.tiles(), t, count);
    }
  }
  static int64_t floats(const Plan& plan) {
    return TileMemory::floats(plan, keeps_packs(plan) ? 0 : kTilesAtATime);
  }

 private:
  bool kept_;
  TileMemory memory_;
};

// Packed heads that exist at one time, none where packs are not kept.
class PackedHeads {
 public:
  PackedHeads(const Plan& plan, int64_t count) {
    for (int64_t n = 0; n < count && keeps_packs(plan); ++n) {
      heads_.push_back(std::make_unique<PackedHead>(plan));
    }
  }
  void start(int64_t slot, int64_t pair) {
    if (!heads_.empty()) heads_[static_cast<size_t>(slot)]->start(pair);
  }
  PackedHead* head(int64_t slot) const {
    return heads_.empty() ? nullptr : heads_[static_cast<size_t>(slot)].get();
  }
  static int64_t floats(const Plan& plan, int64_t count) {
    return keeps_packs(plan) ? count * TileMemory::floats(plan, plan.tiles) : 0;
  }

 private:
  std::vector<std::unique_ptr<PackedHead>> heads_;
};

// (b, kv head) pairs in work at one time.
inline int64_t heads_at_work(const Problem& p, int threads) {
  return std::min<int64_t>(std::max(1, threads), std::max<int64_t>(1, p.batch * p.kv_heads));
}

// Scratch of the two drivers, for the memory formula.
int64_t forward_bytes(const Plan& plan, int threads);
int64_t backward_bytes(const Plan& plan, int threads);

struct PackedBlock {
  int64_t batch, head, first_query, end_query, pair;
  PackedHead* packed;
};

// Calls body(block, worker) for every block of queries of every head. A worker takes a head of its
// own, whose packs stay in its cache; when no head is left it helps with those of others.
template <typename F>
void for_each_packed_block(const Plan& plan, int threads, Stopper& stopper, F&& body) {
  const Problem& p = plan.p;
  const int64_t pairs = p.batch * p.kv_heads;
  const int64_t blocks = (p.queries + kRows - 1) / kRows, tasks = p.group() * blocks;
  if (pairs == 0 || blocks == 0) return;
  const int64_t slots = heads_at_work(p, threads);
  PackedHeads packed(plan, slots);
  // The pair of a slot, times 2^32, plus its next task: one word, so that nobody takes a task of one
  // pair for a task of another.
  constexpr int kTaskBits = 32;
  std::vector<std::atomic<int64_t>> state(static_cast<size_t>(slots));
  const auto open = [&](int64_t slot, int64_t pair) {
    packed.start(slot, pair);
    state[static_cast<size_t>(slot)].store(pair << kTaskBits, std::memory_order_release);
  };
  for (int64_t slot = 0; slot < slots; ++slot) open(slot, slot);
  std::atomic<int64_t> next_pair{slots};
  const auto work = [&](int64_t slot, int worker) {
    while (!stopper.stopped(worker)) {
      const int64_t taken =
          state[static_cast<size_t>(slot)].fetch_add(1, std::memory_order_acq_rel);
      const int64_t pair = taken >> kTaskBits, task = taken - (pair << kTaskBits);
      if (task >= tasks) return;
      // Last queries first: under a causal boundary they are the longest.
      const int64_t n = blocks - 1 - task % blocks;
      body(PackedBlock{pair / p.kv_heads, pair % p.kv_heads * p.group() + task / blocks, n * kRows,
                       std::min(p.queries, (n + 1) * kRows), pair, packed.head(slot)},
           worker);
    }
  };
  parallel_for(threads, threads, stopper, [&](int64_t first, int worker) {
    while (first < slots && !stopper.stopped(worker)) {
      work(first, worker);
      const int64_t pair = next_pair.fetch_add(1, std::memory_order_relaxed);
      if (pair >= pairs) break;
      open(first, pair);
    }
    for (int64_t other = 1; other <= slots; ++other) work((first + other) % slots, worker);
  });
  stopper.check();
}

}  // namespace relpos
