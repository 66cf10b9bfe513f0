// The fused forward pass of whole prompts, and the dense forms.
#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/columns.h"
#include "kernels/denormals.h"
#include "kernels/forward_block.h"
#include "kernels/fused.h"
#include "kernels/softmax_state.h"

namespace relpos {
namespace {

void prefill(const Plan& plan, const TileKernels& kernels, int threads, Stopper& stopper,
             const ForwardResults& to) {
  std::vector<ForwardScratch> scratch;
  std::vector<TileReader> readers;
  for (int worker = 0; worker < threads; ++worker) {
    scratch.emplace_back(plan, kernels);
    readers.emplace_back(plan);
  }
  for_each_packed_block(plan, threads, stopper, [&](const PackedBlock& at, int worker) {
    const FloatMode mode(float_control(plan.p, at.batch, at.head / plan.p.group()));
    ForwardScratch& x = scratch[static_cast<size_t>(worker)];
    x.begin(at.batch);
    for (int64_t i = at.first_query; i < at.end_query; ++i) x.add_row(at.head, i);
    x.start();
    const auto [first, end] = plan.tile_range(x.block);
    const auto forward = [&](const KeyTile* tiles, int64_t t, int64_t count) {
      x.forward(tiles, t, count);
    };
    TileReader& reader = readers[static_cast<size_t>(worker)];
    const int64_t start = x.start_tile(first, end);
    x.run([&, first = first, end = end] {
      reader.read(at.packed, at.pair, start, end, stopper, worker, forward);
      reader.read(at.packed, at.pair, first, start, stopper, worker, forward);
    });
    float sums[kRows];
    for (int row = 0; row < x.block.rows; ++row) sums[row] = x.sum(row);
    finish_rows(plan, at.batch, at.head, at.first_query, x.block.rows, x.block.m, sums, x.block.o,
                plan.Dvp, to);
  });
}

}  // namespace

int64_t forward_bytes(const Plan& plan, int threads) {
  if (plan.p.queries <= kDecodeQueries) return plan.bytes() + decode_bytes(plan, threads);
  return plan.bytes() + 4 * (threads * (ForwardScratch::floats(plan) + TileReader::floats(plan)) +
                             PackedHeads::floats(plan, heads_at_work(plan.p, threads)));
}

int64_t fused_workspace_bytes(const Problem& problem, bool backward) {
  const Plan plan(problem, backward);
  return backward ? backward_bytes(plan, useful_threads(problem))
                  : forward_bytes(plan, useful_threads(problem));
}

bool fused_supports(const Problem& problem, std::string* why) {
  const char* reason = nullptr;
  if (problem.query.dtype == DType::kFloat64) reason = "float64 computes on the reference path";
  for (const Rotation& rotation : problem.terms.rotations) {
    if (!rotation.log_decay.empty() && !problem.positions.consecutive) {
      reason = "a decaying rotation with explicit positions computes on the reference path";
    }
  }
  if (reason != nullptr && why != nullptr) *why = reason;
  return reason == nullptr;
}

void fused_forward(const Problem& p, const ForwardResults& to, bool packs) {
  const Plan plan(p, false, packs);
  const TileKernels& kernels = tile_kernels();
  const int threads = useful_threads(p);
  Stopper stopper(p.cancel);
  if (p.queries <= kDecodeQueries) {
    decode(plan, kernels, threads, stopper, to);
  } else {
    prefill(plan, kernels, threads, stopper, to);
  }
  stopper.check();
}

void fused_emit(const Problem& p, const TensorView& softmax, const TensorView& dense) {
  const Plan plan(p, false);
  const TileKernels& kernels = tile_kernels();
  const int threads = useful_threads(p);
  Stopper stopper(p.cancel);
  std::vector<BlockScratch> scratch;
  std::vector<ColumnScratch> columns;
  std::vector<TileReader> readers;
  for (int worker = 0; worker < threads; ++worker) {
    scratch.emplace_back(plan, kernels);
    columns.emplace_back(plan, kernels);
    readers.emplace_back(plan);
  }
  for_each_packed_block(plan, threads, stopper, [&](const PackedBlock& at, int worker) {
    BlockScratch& x = scratch[static_cast<size_t>(worker)];
    x.begin(at.batch);
    for (int64_t i = at.first_query; i < at.end_query; ++i) x.add_row(at.head, i);
    x.load_queries();
    float inverse_sum[kRows];
    std::fill(x.block.reference, x.block.reference + kRows, -HUGE_VALF);
    const bool unshift = !softmax.given() && !p.terms.key_biases.empty();
    for (int row = 0; row < x.block.rows && unshift; ++row) {
      // Scores are wanted for themselves: a key bias rounded less that of a far key is less exact.
      x.block.score_shift[row] -= x.block.key_shift[row] / kLog2e;
      x.block.key_shift[row] = 0.0;
    }
    for (int row = 0; row < x.block.rows && softmax.given(); ++row) {
      const SoftmaxState state =
          read_softmax(softmax, at.batch, at.head, x.block.index[row], x.block.score_shift[row]);
      x.block.reference[row] = static_cast<float>(state.reference);
      inverse_sum[row] = static_cast<float>(1.0 / state.sum);
    }
    readers[static_cast<size_t>(worker)].read(
        at.packed, at.pair, 0, plan.tiles, stopper, worker,
        [&](const KeyTile* tiles, int64_t t, int64_t count) {
          x.slide(t, count);
          for (int64_t n = 0; n < count; ++n) {
            columns[static_cast<size_t>(worker)].read(x.block, tiles[n]);
            x.decay_queries(tiles[n]);
            kernels.emit(x.block, tiles + n, t + n, 1, dense,
                         softmax.given() ? inverse_sum : nullptr);
          }
        });
  });
  stopper.check();
}

}  // namespace relpos
