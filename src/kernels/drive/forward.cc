// The fused forward pass of whole prompts, and the dense forms.
#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/block/softmax_state.h"
#include "kernels/drive/backward_block.h"
#include "kernels/drive/denormals.h"
#include "kernels/drive/forward_block.h"
#include "kernels/drive/key_chunks.h"
#include "kernels/fused.h"

namespace relpos {
namespace {

// Keys of few queries are divided, but with slopes, whose far tiles may be skipped once a block has seen
// near ones.
// Never a function of the batch or of threads: a batch row keeps its bits.
int64_t tiles_of_chunk(const Plan& plan) {
  constexpr int64_t kWantedTasks = 64, kLeast = 32, kKeysForEach = 8;
  const Problem& p = plan.p;
  const bool sloped =
      std::any_of(p.terms.biases.begin(), p.terms.biases.end(),
                  [](const DistanceBias& bias) { return bias.slopes.view.given(); });
  if (sloped || p.keys < kKeysForEach * p.queries) return std::max<int64_t>(1, plan.tiles);
  return KeyChunks::tiles_for(plan, p.heads * blocks_of_head(p), kWantedTasks, kLeast);
}

// Scratch of whole prompts.
struct Prefill {
  std::vector<ForwardBlock> blocks;
  TileCache cache;
  KeyChunks chunks;

  Prefill(const Plan& plan, int threads, Workspace& memory)
      : cache(plan, heads_at_work(plan.p, threads), threads, memory),
        chunks(plan, tiles_of_chunk(plan), plan.p.batch * plan.p.heads, plan.p.queries, memory) {
    for (int n = 0; n < threads; ++n) blocks.emplace_back(plan, memory);
  }
};

void prefill(const Plan& plan, int threads, Stopper& stopper, const ForwardResults& to) {
  Workspace memory;
  Prefill scratch(plan, threads, memory);
  const auto run = [&](const PackedBlock& at, int worker) {
    const int64_t group = at.batch * plan.p.heads + at.head, block = at.first_query / kRows;
    ForwardBlock& x = scratch.blocks[worker];
    {
      const FloatMode mode(float_control(plan.p, at.batch, at.head / plan.p.group()));
      x.begin(at.batch);
      x.add_rows(at.head, at.first_query, at.end_query);
      x.start(at.chunk == 0);
      const auto [first_seen, end_seen] = x.tile_range();
      const auto [first, end] = scratch.chunks.range(at.chunk, first_seen, end_seen);
      const int64_t start = x.start_tile(first, end);
      const auto read = [&](int64_t from, int64_t until) {
        scratch.cache.read(
            at.slot, at.pair, from, until, stopper, worker,
            [&](const KeyTile* tiles, int64_t t, int64_t n) { x.forward(tiles, t, n); });
      };
      x.run([&, first = first, end = end] {
        x.over_seen(start, end, read);
        x.over_seen(first, start, read);
      });
      scratch.chunks.take(x, group, block, at.chunk, to);
    }
    if (!stopper.stopped(worker)) scratch.chunks.merge(x, group, block, to);
  };
  const int64_t pairs = plan.p.batch * plan.p.kv_heads;
  for_each_packed_block(
      plan.p, 0, pairs, scratch.chunks.count(), pairs_at_once(plan.p, pairs, threads), threads,
      stopper, [&](int64_t slot, int64_t /*pair*/) { scratch.cache.start(slot); }, run);
}

}  // namespace

int64_t fused_workspace_bytes(const Problem& problem, bool backward) {
  Workspace held, memory(Workspace::kCounts);
  const Plan plan(problem, backward, held);
  const int threads = useful_threads(problem);
  if (backward) {
    lay_out_backward(plan, threads, memory);
  } else if (problem.queries <= kDecodeQueries) {
    lay_out_decode(plan, threads, memory);
  } else {
    Prefill(plan, threads, memory);
  }
  return held.bytes() + memory.bytes();
}

bool fused_supports(const Problem& problem, std::string* why) {
  const char* reason = nullptr;
  if (problem.query.dtype == DType::kFloat64) reason = "float64 computes on the reference path";
  for (const Rotation& rotation : problem.terms.rotations) {
    if (rotation.decays() && !problem.positions.consecutive) {
      reason = "a decaying rotation with explicit positions computes on the reference path";
    }
  }
  if (reason != nullptr && why != nullptr) *why = reason;
  return reason == nullptr;
}

void fused_forward(const Problem& p, const ForwardResults& to, bool packs) {
  Workspace memory;
  const Plan plan(p, false, memory, packs);
  const int threads = useful_threads(p);
  Stopper stopper(p.cancel);
  if (p.queries <= kDecodeQueries) {
    decode(plan, threads, stopper, to);
  } else {
    prefill(plan, threads, stopper, to);
  }
  stopper.check();
}

void fused_emit(const Problem& p, const TensorView& softmax, const TensorView& dense) {
  Workspace memory;
  Plan plan(p, false, memory, false, tile_kernels());  // float32 products, for they are shown
  plan.rounds = softmax.given() && tile_kernels(p).unit != nullptr && !reads_in_place(p);
  const int threads = useful_threads(p);
  Stopper stopper(p.cancel);
  TileCache cache(plan, heads_at_work(p, threads), threads, memory);
  std::vector<QueryBlock> blocks;
  for (int worker = 0; worker < threads; ++worker) blocks.emplace_back(plan, memory);
  const auto run = [&](const PackedBlock& at, int worker) {
    QueryBlock& x = blocks[worker];
    x.begin(at.batch);
    x.add_rows(at.head, at.first_query, at.end_query);
    x.load();
    float reference[kRows], inverse_sum[kRows];
    std::fill_n(reference, kRows, -HUGE_VALF);
    const bool unshift = !softmax.given() && !p.terms.key_biases.empty();
    for (int row = 0; row < x.block.rows && unshift; ++row) {
      // Scores are wanted for themselves: a key bias rounded less that of a far key is less exact.
      x.block.score_shift[row] -= x.block.key_shift[row] / kLog2e;
      x.block.key_shift[row] = 0.0;
    }
    for (int row = 0; row < x.block.rows && softmax.given(); ++row) {
      const SoftmaxState state =
          read_softmax(softmax, at.batch, at.head, x.block.index[row], x.block.score_shift[row]);
      reference[row] = static_cast<float>(state.reference);
      inverse_sum[row] = static_cast<float>(1.0 / state.sum);
    }
    cache.read(at.slot, at.pair, 0, plan.tiles, stopper, worker,
               [&](const KeyTile* tiles, int64_t t, int64_t count) {
                 x.emit(tiles, t, count, dense, softmax.given() ? reference : nullptr, inverse_sum);
               });
  };
  for_each_packed_block(
      p, 0, p.batch * p.kv_heads, /*chunks=*/1, /*at_once=*/1, threads, stopper,
      [&](int64_t slot, int64_t /*pair*/) { cache.start(slot); }, run);
  stopper.check();
}

}  // namespace relpos
