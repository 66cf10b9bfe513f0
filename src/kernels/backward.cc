// Driver of the fused backward pass. Tasks are (b, kv head, chunk of query blocks), cut by shape; each
// owns its accumulators, which are summed in task order: the same bits at any thread count.
#include <algorithm>
#include <cstddef>

#include "kernels/backward_block.h"
#include "kernels/denormals.h"
#include "kernels/fused.h"

namespace relpos {
namespace {

// Accumulators that exist at one time; at least two for each thread. Sums do not depend on it.
constexpr int64_t kWaveTasks = 16;
constexpr int64_t kWantedTasks = 16;  // parallelism that few key heads get from chunks of queries
constexpr int64_t kMaxChunks = 4;
// dk and dv of one head above this: no more than two chunks, each of which has its own.
constexpr int64_t kLargeSums = int64_t{16} << 20;

// Chunks of one head's query blocks. Never a function of the batch or of threads: dk and dv of a
// batch row keep their bits.
int64_t chunk_count(const Problem& p) {
  const int64_t blocks = (p.queries + kRows - 1) / kRows;
  const int64_t wanted = (kWantedTasks + p.kv_heads - 1) / std::max<int64_t>(1, p.kv_heads);
  const bool large = p.keys * (p.head_dim + p.value_dim) * 4 > kLargeSums;
  return std::clamp<int64_t>(std::min(wanted, blocks), 1, large ? 2 : kMaxChunks);
}

// Key heads of one wave.
int64_t wave_of(const Problem& p) {
  const int64_t tasks = std::max<int64_t>(kWaveTasks, int64_t{2} * p.threads);
  return std::clamp<int64_t>(tasks / chunk_count(p), 1, std::max<int64_t>(1, p.batch * p.kv_heads));
}

// Scratch of the pass.
struct Backward {
  std::vector<Sums> sums;  // of the tasks of a wave
  std::vector<BackwardBlock> blocks;
  TileCache cache;

  Backward(const Plan& plan, int threads, const TermGradients& wants, Workspace& memory)
      : cache(plan, wave_of(plan.p), threads, memory) {
    for (int64_t n = 0; n < wave_of(plan.p) * chunk_count(plan.p); ++n) {
      sums.emplace_back(plan, wants, memory);
    }
    for (int worker = 0; worker < threads; ++worker) blocks.emplace_back(plan, memory);
  }
};

// What shares an element of a mask's gradient: nothing, or heads and batch rows, whose tasks then run
// one key head after another, or rows, too, whose tasks one thread runs. The order stays the same.
enum class MaskSums { kNone, kOfHeads, kOfRows };
MaskSums mask_sums(const Problem& p, const ProblemGradients& gradients) {
  if (gradients.mask == nullptr) return MaskSums::kNone;
  const auto shared = [&](size_t axis, int64_t size) {
    return size > 1 && gradients.mask_index.strides[axis] == 0;
  };
  if (shared(2, p.queries)) return MaskSums::kOfRows;
  return shared(0, p.batch) || shared(1, p.heads) ? MaskSums::kOfHeads : MaskSums::kNone;
}

// The output and the softmax of few rows, found anew.
struct Again {
  Buffer<std::byte> out;
  Buffer<float> softmax;

  Again(const Problem& p, Workspace& memory)
      : out(memory.take<std::byte>(rows(p) * p.value_dim * item_size(p.query.dtype))),
        softmax(memory.take<float>(rows(p) * 2)) {}
  static int64_t rows(const Problem& p) {
    return reads_in_place(p) ? p.batch * p.heads * p.queries : 0;
  }
};

void tiled_backward(const Problem& p, const Outputs& from, const ProblemGradients& gradients) {
  Workspace memory;
  const Plan plan(p, true, memory);
  const MaskSums mask = mask_sums(p, gradients);
  const int threads = mask == MaskSums::kOfRows ? 1 : useful_threads(p);
  Stopper stopper(p.cancel);
  const int64_t pairs = p.batch * p.kv_heads, chunks = chunk_count(p);
  const int64_t wave = mask == MaskSums::kOfHeads ? 1 : wave_of(p);
  const int64_t blocks = (p.queries + kRows - 1) / kRows;
  if (pairs == 0) return;
  Backward scratch(plan, threads, *gradients.terms, memory);
  // Block n of query head g of a group.
  const auto run = [&](int64_t slot, int64_t pair, int64_t g, int64_t n, const Sums& sums,
                       int worker) {
    BackwardBlock& x = scratch.blocks[worker];
    x.begin(pair / p.kv_heads);
    for (int64_t i = n * kRows; i < std::min(p.queries, (n + 1) * kRows); ++i) {
      x.add_row(pair % p.kv_heads * p.group() + g, i);
    }
    x.start(g, sums, from, gradients);
    const auto [first, end] = x.tile_range();
    scratch.cache.read(slot, pair, first, end, stopper, worker,
                       [&](const KeyTile* tiles, int64_t t, int64_t count) {
                         x.backward(tiles, t, count, g, sums);
                       });
    x.finish(g, sums, gradients);
  };
  for (int64_t first = 0; first < pairs; first += wave) {
    const int64_t count = std::min(wave, pairs - first);
    for (int64_t slot = 0; slot < count; ++slot) scratch.cache.start(slot);
    parallel_for(count * chunks, threads, stopper, [&](int64_t task, int worker) {
      Sums& own = scratch.sums[task];
      own.clear();
      const int64_t slot = task / chunks, pair = first + slot;
      const FloatMode mode(float_control(p, pair / p.kv_heads, pair % p.kv_heads, from.dout));
      for (int64_t g = 0; g < p.group(); ++g) {
        for (int64_t n = task % chunks; n < blocks && !stopper.stopped(worker); n += chunks) {
          run(slot, pair, g, n, own, worker);
        }
      }
    });
    stopper.check();
    reduce_keys(plan, scratch.sums, first, count, chunks, threads, stopper, gradients);
    reduce_terms(plan, scratch.sums, first * chunks, count * chunks, chunks, threads, stopper,
                 *gradients.terms);
    stopper.check();
  }
}

}  // namespace

void lay_out_backward(const Plan& plan, int threads, Workspace& memory) {
  [[maybe_unused]] const Again counted(plan.p, memory);
  Backward(plan, threads, TermGradients::zeros(plan.p.terms), memory);
}

void fused_backward(const Problem& p, const TensorView& out, const TensorView& softmax,
                    const TensorView& dout, const TensorView& dlse,
                    const ProblemGradients& gradients) {
  const bool of_more_keys = softmax.rank == 3;  // an lse, maybe of other keys, too
  if (of_more_keys || !reads_in_place(p)) {
    return tiled_backward(p, {out, softmax, dout, dlse}, gradients);
  }
  // Rows read in place sum their products in another order than tiles do, and eps |score| apart a
  // sum does not fit these weights: it is found anew.
  Workspace memory;
  const Again again(p, memory);
  const TensorView out_again(again.out.get(), p.query.dtype, out.dims());
  const TensorView sums(again.softmax.get(), DType::kFloat32, {p.batch, p.heads, p.queries, 2});
  fused_forward(p, {out_again, {}, sums}, true);
  tiled_backward(p, {out, sums, dout, dlse}, gradients);
}

}  // namespace relpos
