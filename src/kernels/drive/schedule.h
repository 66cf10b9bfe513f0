// How a call is cut into tasks: heads, and blocks of queries within a head.
#pragma once

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "kernels/drive/tile_cache.h"

namespace relpos {

// One thread where the whole call is shorter than waking another (about 2 MFLOP).
inline int useful_threads(const Problem& p) {
  const double flops = 2.0 * static_cast<double>(p.batch * p.heads) *
                       static_cast<double>(p.queries) * static_cast<double>(p.keys) *
                       static_cast<double>(p.head_dim + p.value_dim);
  return flops < 2e6 ? 1 : p.threads;
}

// Blocks of the queries of one head, and of those of all heads that share a key head.
inline int64_t blocks_of_head(const Problem& p) { return (p.queries + kRows - 1) / kRows; }
inline int64_t blocks_of_pair(const Problem& p) { return p.group() * blocks_of_head(p); }

// (b, kv head) pairs in work at one time.
inline int64_t heads_at_work(const Problem& p, int threads) {
  return std::min<int64_t>(std::max(1, threads), std::max<int64_t>(1, p.batch * p.kv_heads));
}

// Of `count` pairs, those that a worker takes at one time: several where a pair is one block and there are
// many, since the number of the next pair moves between the workers' caches each time.
inline int64_t pairs_at_once(const Problem& p, int64_t count, int threads) {
  constexpr int64_t kMost = 8, kTurns = 16;
  if (blocks_of_pair(p) > 1) return 1;
  return std::clamp<int64_t>(count / (kTurns * std::max(1, threads)), 1, kMost);
}

struct PackedBlock {
  int64_t batch, head, first_query, end_query, pair, slot;
  int64_t number;  // of the pair's blocks, which are dealt in this order
  int64_t chunk;   // of its keys
};

// Calls body(block, worker) for every block of queries of pairs [first_pair, first_pair + count), and for
// each of `chunks` chunks of its keys. A worker takes a head of its own, whose packs stay in its caches;
// when no head is left it helps with those of others. A pair has a slot, of heads_at_work(), to itself:
// start(slot, pair) is called before its first block, and after all blocks of the slot's pair before.
// A worker takes `at_once` pairs at one time, in order, and deals all blocks of each before it begins the
// next. A block may wait for any of lower pairs, and for those of lower numbers of its own: when a pair is
// taken all lower ones are, so none waits for ever, however few threads the system grants.
template <typename Start, typename F>
void for_each_packed_block(const Problem& p, int64_t first_pair, int64_t count, int64_t chunks,
                           int64_t at_once, int threads, Stopper& stopper, Start&& start,
                           F&& body) {
  const int64_t blocks = blocks_of_head(p), tasks = blocks_of_pair(p) * chunks;
  if (count == 0 || blocks == 0) return;
  const int64_t slots = std::min(count, heads_at_work(p, threads)), pairs = first_pair + count;
  // The pair of a slot, times 2^32, plus its next task: one word, so that nobody takes a task of one
  // pair for a task of another.
  constexpr int kTaskBits = 32;
  struct alignas(64) Slot {  // a cache line of its own
    std::atomic<int64_t> state;
  };
  std::vector<Slot> slot_of(slots);
  for (Slot& slot : slot_of) slot.state.store(tasks, std::memory_order_relaxed);
  alignas(64) std::atomic<int64_t> next_pair{first_pair};
  alignas(64) std::atomic<int64_t> opened{0};
  const auto open = [&](int64_t slot, int64_t pair) {
    start(slot, pair);
    slot_of[slot].state.store(pair << kTaskBits, std::memory_order_release);
  };
  const auto work = [&](int64_t slot, int worker) {
    while (!stopper.stopped(worker)) {
      const int64_t taken = slot_of[slot].state.fetch_add(1, std::memory_order_acq_rel);
      const int64_t pair = taken >> kTaskBits, task = taken - (pair << kTaskBits);
      if (task >= tasks) return;
      // Last queries first: under a causal boundary they are the longest.
      const int64_t number = task / chunks, n = blocks - 1 - number % blocks;
      body(
          PackedBlock{pair / p.kv_heads, pair % p.kv_heads * p.group() + number / blocks, n * kRows,
                      std::min(p.queries, (n + 1) * kRows), pair, slot, number, task % chunks},
          worker);
    }
  };
  // The first `slots` of the tasks have one each; the others are dealt after them, and help.
  parallel_for(threads, threads, stopper, [&](int64_t first, int worker) {
    while (first < slots && !stopper.stopped(worker)) {
      const int64_t taken = next_pair.fetch_add(at_once, std::memory_order_relaxed);
      if (taken >= pairs) break;
      const int64_t end = std::min(taken + at_once, pairs);
      for (int64_t pair = taken; pair < end && !stopper.stopped(worker); ++pair) {
        open(first, pair);
        if (pair + 1 == end) opened.fetch_add(end - taken, std::memory_order_release);
        work(first, worker);
      }
    }
    // From then on no slot is opened again, whose pair somebody helps with.
    while (opened.load(std::memory_order_acquire) < count && !stopper.stopped(worker)) {
      std::this_thread::yield();
    }
    for (int64_t other = 1; other <= slots; ++other) work((first + other) % slots, worker);
  });
  stopper.check();
}

}  // namespace relpos
