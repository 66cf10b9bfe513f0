// How a call is cut into tasks: waves of packed key heads, then blocks of queries, head by head.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/plan.h"

namespace relpos {

// Packed keys and values of one wave stay below this, or are those of one head.
inline constexpr int64_t kWaveBytes = int64_t{64} << 20;

// One thread where the whole call is shorter than waking another (about 2 MFLOP).
inline int useful_threads(const Problem& p) {
  const double flops = 2.0 * static_cast<double>(p.batch * p.heads) *
                       static_cast<double>(p.queries) * static_cast<double>(p.keys) *
                       static_cast<double>(p.head_dim + p.value_dim);
  return flops < 2e6 ? 1 : p.threads;
}

// The packed tiles of `heads` consecutive (b, kv head) pairs.
class PackedHeads {
 public:
  PackedHeads(const Plan& plan, int64_t heads)
      : plan_(plan),
        memory_(heads * plan.tiles * plan.tile_floats()),
        positions_(plan.p.positions.consecutive ? 0 : heads * plan.tiles * kTile),
        tiles_(static_cast<size_t>(heads * plan.tiles)) {}

  // Fills the slots with pairs [first, first + count).
  void pack(int64_t first, int64_t count, int threads, Stopper& stopper) {
    std::vector<Buffer<float>> rows;
    for (int worker = 0; worker < threads; ++worker)
      rows.emplace_back(std::max(plan_.Dp, plan_.Dvp));
    parallel_for(count * plan_.tiles, threads, stopper, [&](int64_t task, int worker) {
      const int64_t pair = first + task / plan_.tiles;
      tiles_[static_cast<size_t>(task)] =
          plan_.pack_tile(pair / plan_.p.kv_heads, pair % plan_.p.kv_heads, task % plan_.tiles,
                          memory_.get() + task * plan_.tile_floats(),
                          plan_.p.positions.consecutive ? nullptr : positions_.get() + task * kTile,
                          rows[static_cast<size_t>(worker)].get());
    });
  }
  const KeyTile* tiles(int64_t slot) const noexcept {
    return tiles_.data() + static_cast<size_t>(slot * plan_.tiles);
  }

 private:
  const Plan& plan_;
  Buffer<float> memory_;
  Buffer<int64_t> positions_;
  std::vector<KeyTile> tiles_;
};

// (b, kv head) pairs whose packs fit a wave.
inline int64_t wave_heads(const Plan& plan) {
  const int64_t bytes = std::max<int64_t>(1, plan.tiles * plan.tile_floats() * 4);
  return std::clamp<int64_t>(kWaveBytes / bytes, 1,
                             std::max<int64_t>(1, plan.p.batch * plan.p.kv_heads));
}

// Scratch of the two drivers, for the memory formula.
int64_t forward_bytes(const Plan& plan, int threads);
int64_t backward_bytes(const Plan& plan, int threads);

struct PackedBlock {
  int64_t batch, head, first_query, end_query;
  const KeyTile* tiles;
};

// Calls body(block, worker) for every block of queries of every head.
template <typename F>
void for_each_packed_block(const Plan& plan, int threads, Stopper& stopper, F&& body) {
  const Problem& p = plan.p;
  const int64_t pairs = p.batch * p.kv_heads, wave = wave_heads(plan);
  const int64_t blocks = (p.queries + kRows - 1) / kRows;
  if (pairs == 0 || blocks == 0) return;
  PackedHeads packed(plan, wave);
  for (int64_t first = 0; first < pairs; first += wave) {
    const int64_t count = std::min(wave, pairs - first);
    packed.pack(first, count, threads, stopper);
    stopper.check();
    parallel_for(count * p.group() * blocks, threads, stopper, [&](int64_t task, int worker) {
      const int64_t slot = task / (p.group() * blocks);
      const int64_t pair = first + slot;
      // Last queries first: under a causal boundary they are the longest.
      const int64_t n = blocks - 1 - task % blocks;
      body(PackedBlock{pair / p.kv_heads, pair % p.kv_heads * p.group() + task / blocks % p.group(),
                       n * kRows, std::min(p.queries, (n + 1) * kRows), packed.tiles(slot)},
           worker);
    });
    stopper.check();
  }
}

}  // namespace relpos
