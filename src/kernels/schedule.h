// How a call is cut into tasks: heads, and blocks of queries within a head.
#pragma once

#include <algorithm>
#include <atomic>
#include <vector>

#include "kernels/tile_cache.h"

namespace relpos {

// One thread if the whole call takes less time than waking another thread (about 2 MFLOP).
inline int useful_threads(const Problem& p) {
  const double flops = 2.0 * static_cast<double>(p.batch * p.heads) *
                       static_cast<double>(p.queries) * static_cast<double>(p.keys) *
                       static_cast<double>(p.head_dim + p.value_dim);
  return flops < 2e6 ? 1 : p.threads;
}

// How many (b, kv head) pairs are computed at the same time.
inline int64_t heads_at_work(const Problem& p, int threads) {
  return std::min<int64_t>(std::max(1, threads), std::max<int64_t>(1, p.batch * p.kv_heads));
}

struct PackedBlock {
  int64_t batch, head, first_query, end_query, pair, slot;
};

// Calls body(block, worker) for every block of queries of every head. Each worker takes its own head,
// whose packed tiles stay in its caches; when no head is left, it helps other workers.
template <typename F>
void for_each_packed_block(const Problem& p, TileCache& cache, int threads, Stopper& stopper,
                           F&& body) {
  const int64_t pairs = p.batch * p.kv_heads;
  const int64_t blocks = (p.queries + kRows - 1) / kRows, tasks = p.group() * blocks;
  if (pairs == 0 || blocks == 0) return;
  const int64_t slots = heads_at_work(p, threads);
  // The pair of a slot, times 2^32, plus its next task. They are one word, so that no worker mistakes a
  // task of one pair for a task of another.
  constexpr int kTaskBits = 32;
  std::vector<std::atomic<int64_t>> state(slots);
  const auto open = [&](int64_t slot, int64_t pair) {
    cache.start(slot);
    state[slot].store(pair << kTaskBits, std::memory_order_release);
  };
  for (int64_t slot = 0; slot < slots; ++slot) open(slot, slot);
  std::atomic<int64_t> next_pair{slots};
  const auto work = [&](int64_t slot, int worker) {
    while (!stopper.stopped(worker)) {
      const int64_t taken = state[slot].fetch_add(1, std::memory_order_acq_rel);
      const int64_t pair = taken >> kTaskBits, task = taken - (pair << kTaskBits);
      if (task >= tasks) return;
      // Last queries first: under a causal boundary they are the longest.
      const int64_t n = blocks - 1 - task % blocks;
      body(PackedBlock{pair / p.kv_heads, pair % p.kv_heads * p.group() + task / blocks, n * kRows,
                       std::min(p.queries, (n + 1) * kRows), pair, slot},
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
