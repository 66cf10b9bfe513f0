// Driver of the fused backward pass. Tasks are blocks of queries. Those of a (b, kv head) pair add to the
// gradients of its keys in turns, in the order of their numbers, and to those of terms in chunks, which
// are cut by shape and summed in order: the same bits at any thread count. Where there are as many pairs
// as threads, whoever ends a pair's last block writes the gradients of its keys: a call whose pairs are
// many and short is one parallel region, and beside busy programs each region waits for the scheduler.
// What batch rows, heads or queries share of a mask's gradient they add to in turns, too (mask_order.h).
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "kernels/drive/backward_block.h"
#include "kernels/drive/denormals.h"
#include "kernels/fused.h"

namespace relpos {
namespace {

// Blocks that compute at one time where terms are summed: of all key heads, and at most of one.
constexpr int64_t kFewTasks = 16, kFewOfHead = 4, kManyTasks = 64, kManyOfHead = 16;
// The sums of the pairs of a wave are held together: of kWavePairs where they take no more than kWaveBytes,
// and of more where they take no more than kShortBytes, each with the objects that hold it.
constexpr int64_t kWavePairs = 16, kWaveBytes = int64_t{32} << 20;
constexpr int64_t kShortBytes = int64_t{4} << 20, kObjectBytes = 1024;

int64_t key_sum_bytes(const Plan& plan) { return 4 * plan.tiles * kTile * (plan.Dp + plan.Dvp); }

// Chunks of a pair's blocks: block n is of chunk n % chunks, and adds to its sums after the block before
// it has. As many as many threads need, where that takes no more memory than the sums of the keys, and
// else as few threads do. Never a function of the batch or of threads: gradients keep their bits.
int64_t chunk_count(const Plan& plan) {
  const Problem& p = plan.p;
  const auto of = [&](int64_t tasks, int64_t most) {
    return std::min(most, (tasks + p.kv_heads - 1) / std::max<int64_t>(1, p.kv_heads));
  };
  const int64_t affordable = key_sum_bytes(plan) / std::max<int64_t>(1, ChunkSums::bytes(plan));
  const int64_t wanted =
      std::clamp(affordable, of(kFewTasks, kFewOfHead), of(kManyTasks, kManyOfHead));
  return std::clamp<int64_t>(wanted, 1, std::max<int64_t>(1, blocks_of_pair(p)));
}

// How the pairs of a call are computed, besides in order. No sum depends on it.
struct Schedule {
  int threads;
  bool writes_keys;  // those of a pair, whose sums are its slot's, when its last block ends
  bool keeps_keys;   // sums of keys hold gradients of terms

  Schedule(const Problem& p, const TermGradients& wants, int of_threads)
      : threads(of_threads),
        writes_keys(p.queries > 0 && p.batch * p.kv_heads >= of_threads &&
                    !KeySums::of_terms(wants)),
        keeps_keys(KeySums::of_terms(wants)) {}
};

// Pairs of one wave, at least one for each thread. `sums`: terms are summed.
int64_t wave_of(const Plan& plan, const Schedule& how, bool sums) {
  const int64_t pairs = std::max<int64_t>(1, plan.p.batch * plan.p.kv_heads);
  if (how.writes_keys && !sums) return pairs;
  const int64_t bytes = chunk_count(plan) * ChunkSums::bytes(plan) +
                        (how.writes_keys ? int64_t{0} : key_sum_bytes(plan));
  const int64_t few = std::min(kWavePairs, kWaveBytes / std::max<int64_t>(1, bytes));
  const int64_t affordable = std::max(few, kShortBytes / std::max(kObjectBytes, bytes));
  return std::min(std::max<int64_t>(affordable, how.threads), pairs);
}

// Scratch of the pass.
struct Backward {
  int64_t chunks;
  std::vector<ChunkSums> sums;  // [wave, chunks]; one where there are none to hold
  bool sums_terms;
  int64_t wave;
  std::vector<KeySums> keys;  // of the slots where these write_keys, else [wave]
  std::vector<BackwardBlock> blocks;
  KeyWriter writer;
  TileCache cache;

  Backward(const Plan& plan, const Schedule& how, const TermGradients& wants, Workspace& memory)
      : chunks(chunk_count(plan)),
        sums(first_sums(plan, wants, memory)),
        sums_terms(!sums.front().empty()),
        wave(wave_of(plan, how, sums_terms)),
        writer(plan, how.threads, memory),
        cache(plan, heads_at_work(plan.p, how.threads), how.threads, memory) {
    const int64_t held = how.writes_keys ? heads_at_work(plan.p, how.threads) : wave;
    keys.reserve(held);
    for (int64_t n = 0; n < held; ++n) {
      keys.emplace_back(plan, wants, blocks_of_pair(plan.p), memory);
    }
    const int64_t all = sums_terms || how.keeps_keys ? wave * chunks : 1;
    sums.reserve(all);
    while (std::ssize(sums) < all) sums.emplace_back(plan, wants, memory);
    blocks.reserve(how.threads);
    for (int worker = 0; worker < how.threads; ++worker) blocks.emplace_back(plan, memory);
  }
  // The sums of a chunk of the n-th pair of a wave.
  ChunkSums& sums_of(int64_t n, int64_t chunk) {
    return sums.size() == 1 ? sums.front() : sums[n * chunks + chunk];
  }

 private:
  static std::vector<ChunkSums> first_sums(const Plan& plan, const TermGradients& wants,
                                           Workspace& memory) {
    std::vector<ChunkSums> first;
    first.emplace_back(plan, wants, memory);
    return first;
  }
};

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

// The floating-point mode of the pair of each slot, found by the first of its blocks.
class Modes {
 public:
  explicit Modes(int64_t slots) : modes_(new std::atomic<int64_t>[slots]) {}
  void start(int64_t slot) noexcept { modes_[slot].store(kUnknown, std::memory_order_relaxed); }
  template <typename F>
  FloatControl of(int64_t slot, F&& find) {
    int64_t mode = modes_[slot].load(std::memory_order_relaxed);
    if (mode == kUnknown) {
      mode = static_cast<int64_t>(find());
      modes_[slot].store(mode, std::memory_order_relaxed);
    }
    return static_cast<FloatControl>(mode);
  }

 private:
  static constexpr int64_t kUnknown = -1;

  std::unique_ptr<std::atomic<int64_t>[]> modes_;
};

// The pass of one call over tiles.
class TiledBackward {
 public:
  TiledBackward(const Problem& p, const Outputs& from, const ProblemGradients& gradients)
      : p_(p),
        from_(from),
        gradients_(gradients),
        how_(p, *gradients.terms, useful_threads(p)),
        stopper_(p.cancel),
        mask_order_(p, gradients),
        scratch_(plan_, how_, *gradients.terms, memory_),
        modes_(heads_at_work(p, how_.threads)) {}

  void run() {
    const int64_t pairs = p_.batch * p_.kv_heads;
    for (int64_t first = 0; first < pairs; first += scratch_.wave) {
      run_wave(first, std::min(scratch_.wave, pairs - first));
    }
  }

 private:
  void run_wave(int64_t first, int64_t count) {
    first_ = first;
    if (p_.queries == 0) {  // else a pair's start does, and a chunk's first block
      for (KeySums& keys : scratch_.keys) keys.clear();
      for (ChunkSums& sums : scratch_.sums) sums.clear();
    }
    const int64_t at_once = mask_order_.waits() ? 1 : pairs_at_once(p_, count, how_.threads);
    for_each_packed_block(
        p_, first, count, /*chunks=*/1, at_once, how_.threads, stopper_,
        [&](int64_t slot, int64_t pair) { start_pair(slot, pair); },
        [&](const PackedBlock& at, int worker) { run_block(at, worker); });
    if (!how_.writes_keys) write_keys(count);
    if (scratch_.sums_terms || how_.keeps_keys) {
      const std::span<const KeySums> keys(scratch_.keys);
      reduce_terms(plan_, scratch_.sums, how_.keeps_keys ? keys : keys.first(0), first, count,
                   scratch_.chunks, how_.threads, stopper_, *gradients_.terms);
    }
    stopper_.check();
  }

  KeySums& keys_of(int64_t slot, int64_t pair) {
    return scratch_.keys[how_.writes_keys ? slot : pair - first_];
  }
  void start_pair(int64_t slot, int64_t pair) {
    scratch_.cache.start(slot);
    modes_.start(slot);
    keys_of(slot, pair).clear();
  }

  void run_block(const PackedBlock& at, int worker) {
    KeySums& keys = keys_of(at.slot, at.pair);
    ChunkSums& sums = scratch_.sums_of(at.pair - first_, at.number % scratch_.chunks);
    BlockSums own{at.head % p_.group(), sums, keys,
                  BlockTurn(keys.order, at.number, stopper_, worker),
                  mask_order_.turn(at, stopper_, worker)};
    const int64_t before = at.number - scratch_.chunks;
    // Heads of a group add to the same angles, each head after the one before it.
    if (plan_.rotations.trains() && !own.turn.await_block(at.number - blocks_of_head(p_))) return;
    if (scratch_.sums_terms && !own.turn.await_block(before)) return;
    if (before < 0) sums.clear();
    compute(at, worker, own);
    if (!own.finish() || !how_.writes_keys) return;
    for (int64_t t = 0; t < plan_.tiles; ++t) {
      scratch_.writer.write(keys, at.pair, t, worker, gradients_);
    }
  }

  void compute(const PackedBlock& at, int worker, BlockSums& own) {
    const FloatMode mode(modes_.of(
        at.slot, [&] { return float_control(p_, at.batch, at.pair % p_.kv_heads, from_.dout); }));
    BackwardBlock& x = scratch_.blocks[worker];
    x.begin(at.batch);
    x.add_rows(at.head, at.first_query, at.end_query);
    x.start(own, from_, gradients_);
    const auto [begin, end] = x.tile_range();
    x.over_seen(begin, end, [&](int64_t from, int64_t until) {
      own.leave_before(from);
      scratch_.cache.read(at.slot, at.pair, from, until, stopper_, worker,
                          [&](const KeyTile* tiles, int64_t t, int64_t some) {
                            x.backward(tiles, t, some, own, *gradients_.terms);
                          });
    });
    x.finish(own, gradients_);
  }

  void write_keys(int64_t count) {
    parallel_for(count * plan_.tiles, how_.threads, stopper_, [&](int64_t task, int worker) {
      const int64_t n = task / plan_.tiles, t = task % plan_.tiles;
      scratch_.writer.write(scratch_.keys[n], first_ + n, t, worker, gradients_);
    });
  }

  const Problem& p_;
  const Outputs& from_;
  const ProblemGradients& gradients_;
  Workspace memory_;
  const Plan plan_{p_, true, memory_};
  const Schedule how_;
  Stopper stopper_;
  MaskOrder mask_order_;
  Backward scratch_;
  Modes modes_;
  int64_t first_ = 0;  // pair of the wave
};

void tiled_backward(const Problem& p, const Outputs& from, const ProblemGradients& gradients) {
  if (p.batch * p.kv_heads > 0) TiledBackward(p, from, gradients).run();
}

}  // namespace

void lay_out_backward(const Plan& plan, int threads, Workspace& memory) {
  [[maybe_unused]] const Again counted(plan.p, memory);
  const TermGradients wants = TermGradients::zeros(plan.p.terms);
  Backward(plan, Schedule(plan.p, wants, threads), wants, memory);
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
