// Driver of the fused backward pass. Tasks are blocks of queries. Those of a (b, kv head) pair add to the
// gradients of its keys in turns, in the order of their numbers, and to those of terms in chunks, which
// are cut by shape and summed in order: the same bits at any thread count.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>

#include "kernels/backward_block.h"
#include "kernels/denormals.h"
#include "kernels/fused.h"

namespace relpos {
namespace {

// Blocks that compute at one time where terms are summed: of all key heads, and at most of one.
constexpr int64_t kFewTasks = 16, kFewOfHead = 4, kManyTasks = 64, kManyOfHead = 16;
// Sums of the pairs of a wave are held together: of so many, where they take no more than this.
constexpr int64_t kWavePairs = 16, kWaveBytes = int64_t{32} << 20;

int64_t key_sum_bytes(const Plan& plan) { return 4 * plan.tiles * kTile * (plan.Dp + plan.Dvp); }

// Chunks of a pair's blocks: block n is of chunk n % chunks, and adds to its sums after the block before
// it has. As many as many threads need, where that takes no more memory than the sums of the keys, and
// else as few threads do. Never a function of the batch or of threads: gradients keep their bits.
int64_t chunk_count(const Plan& plan) {
  const Problem& p = plan.p;
  const auto of = [&](int64_t tasks, int64_t most) {
    return std::min(most, (tasks + p.kv_heads - 1) / std::max<int64_t>(1, p.kv_heads));
  };
  const int64_t affordable = key_sum_bytes(plan) / std::max<int64_t>(1, Sums::bytes(plan));
  const int64_t wanted =
      std::clamp(affordable, of(kFewTasks, kFewOfHead), of(kManyTasks, kManyOfHead));
  return std::clamp<int64_t>(wanted, 1, std::max<int64_t>(1, blocks_of_pair(p)));
}

// Pairs of one wave, at least one for each thread. No sum depends on it.
int64_t wave_of(const Plan& plan, int threads) {
  const int64_t bytes = key_sum_bytes(plan) + chunk_count(plan) * Sums::bytes(plan);
  const int64_t affordable = std::min(kWavePairs, kWaveBytes / std::max<int64_t>(1, bytes));
  return std::min(std::max<int64_t>(affordable, threads),
                  std::max<int64_t>(1, plan.p.batch * plan.p.kv_heads));
}

// Scratch of the pass.
struct Backward {
  int64_t chunks, wave;
  std::vector<Sums> sums;  // [wave, chunks]
  std::vector<KeySums> keys;
  std::vector<BackwardBlock> blocks;
  TileCache cache;

  Backward(const Plan& plan, int threads, const TermGradients& wants, Workspace& memory)
      : chunks(chunk_count(plan)),
        wave(wave_of(plan, threads)),
        cache(plan, heads_at_work(plan.p, threads), threads, memory) {
    keys.reserve(wave);
    sums.reserve(wave * chunks);
    blocks.reserve(threads);
    for (int64_t n = 0; n < wave; ++n) {
      keys.emplace_back(plan, wants, blocks_of_pair(plan.p), memory);
    }
    for (int64_t n = 0; n < wave * chunks; ++n) sums.emplace_back(plan, wants, memory);
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

// The floating-point mode of each pair of a wave, found by the first of its blocks.
class Modes {
 public:
  explicit Modes(int64_t pairs) : modes_(new std::atomic<int64_t>[pairs]), pairs_(pairs) {}
  void clear() noexcept {
    for (int64_t n = 0; n < pairs_; ++n) modes_[n].store(kUnknown, std::memory_order_relaxed);
  }
  template <typename F>
  FloatControl of(int64_t n, F&& find) {
    int64_t mode = modes_[n].load(std::memory_order_relaxed);
    if (mode == kUnknown) {
      mode = static_cast<int64_t>(find());
      modes_[n].store(mode, std::memory_order_relaxed);
    }
    return static_cast<FloatControl>(mode);
  }

 private:
  static constexpr int64_t kUnknown = -1;

  std::unique_ptr<std::atomic<int64_t>[]> modes_;
  int64_t pairs_;
};

void tiled_backward(const Problem& p, const Outputs& from, const ProblemGradients& gradients) {
  Workspace memory;
  const Plan plan(p, true, memory);
  const MaskSums mask = mask_sums(p, gradients);
  const int threads = mask == MaskSums::kOfRows ? 1 : useful_threads(p);
  Stopper stopper(p.cancel);
  const int64_t pairs = p.batch * p.kv_heads;
  if (pairs == 0) return;
  Backward scratch(plan, threads, *gradients.terms, memory);
  const int64_t wave = mask == MaskSums::kOfHeads ? 1 : scratch.wave, chunks = scratch.chunks;
  const bool sums_terms = !scratch.sums.front().empty();
  // Heads of a group add to the same numbers, each head after the one before it.
  const bool shares = mask == MaskSums::kOfHeads || plan.rotations.trains();
  Modes modes(wave);
  for (Sums& sums : scratch.sums) {
    if (p.queries == 0) sums.clear();  // else a chunk's first block does
  }
  for (int64_t first = 0; first < pairs; first += wave) {
    const int64_t count = std::min(wave, pairs - first);
    for (int64_t n = 0; n < count; ++n) scratch.keys[n].clear();
    modes.clear();
    const auto run = [&](const PackedBlock& at, int worker) {
      const int64_t n = at.pair - first, before = at.number - chunks;
      Sums& sums = scratch.sums[n * chunks + at.number % chunks];
      BlockSums own{at.head % p.group(), sums, scratch.keys[n],
                    BlockTurn(scratch.keys[n].order, at.number, stopper, worker)};
      if (shares && !own.turn.await_block(at.number - blocks_of_head(p))) return;
      if (sums_terms && !own.turn.await_block(before)) return;
      if (before < 0) sums.clear();
      const FloatMode mode(
          modes.of(n, [&] { return float_control(p, at.batch, at.pair % p.kv_heads, from.dout); }));
      BackwardBlock& x = scratch.blocks[worker];
      x.begin(at.batch);
      x.add_rows(at.head, at.first_query, at.end_query);
      x.start(own, from, gradients);
      const auto [begin, end] = x.tile_range();
      own.turn.leave_before(begin);
      scratch.cache.read(
          at.slot, at.pair, begin, end, stopper, worker,
          [&](const KeyTile* tiles, int64_t t, int64_t some) { x.backward(tiles, t, some, own); });
      x.finish(own, gradients);
      own.turn.finish();
    };
    for_each_packed_block(p, first, count, 1, scratch.cache, threads, stopper, run);
    write_keys(plan, scratch.keys, first, count, threads, stopper, gradients);
    reduce_terms(plan, scratch.sums, scratch.keys, first, count, chunks, threads, stopper,
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
