// What the parts of a call cost one thread, for the model of bench/scaling.py, through ctypes.
#include <algorithm>
#include <chrono>
#include <cmath>

#include "kernels/drive/backward_block.h"
#include "kernels/drive/key_chunks.h"
#include "kernels/drive/schedule.h"
#include "kernels/fused.h"
#include "testing/random_terms.h"

namespace {

using namespace relpos;

// Seconds of each part; a block has kRows queries, and sees all keys of a tile.
struct Costs {
  double setup;   // of a call: what is computed before its tasks
  double pack;    // of a tile
  double start;   // of a block
  double tile;    // of a block in a tile, what is its own
  double shared;  // of a block in a tile, what it adds to the keys in its turn
  double mask;    // and to the gradient of a mask
  double finish;  // of a block
  double write;   // of a tile's gradients
  double reduce;  // of the sums of a chunk
};

// The least of several: other programs only ever add to it.
template <typename F>
double seconds(int repeats, F&& f) {
  double least = HUGE_VAL;
  for (int n = 0; n < repeats; ++n) {
    const auto start = std::chrono::steady_clock::now();
    f();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    least = std::min(least, taken.count());
  }
  return least;
}

constexpr int kRepeats = 7;

struct Call : random_terms::PlainCall {
  Tensor softmax, mask;

  Call(const int64_t* shape, bool biased, bool masked)
      : PlainCall(1, shape[2], shape[3], shape[4], 1, shape[0], shape[1]),
        softmax(DType::kFloat32, {1, shape[0], shape[2], 2}) {
    p.threads = 1;
    p.scale = 1.0 / std::sqrt(static_cast<double>(p.head_dim));
    if (masked) {
      mask = Tensor(DType::kFloat32, {1, p.heads, p.queries, p.keys});
      p.visible.mask = mask.view();
    }
    if (!biased) return;
    const int64_t far = std::max(p.queries, p.keys) - 1;
    random_terms::add_term(p.terms.biases, ClassMap::clamp(-far, far),
                           trained({p.heads, 2 * far + 1}));
  }
};

// Calls body(tiles, first tile, count) over the tiles of the first head.
template <typename F>
void read(TileCache& cache, const Plan& plan, F&& body) {
  Stopper stopper(nullptr);
  cache.read(0, 0, 0, plan.tiles, stopper, 0, body);
}

// Seconds of a tile in a pass over all of them.
template <typename F>
double seconds_of_tile(const Plan& plan, F&& f) {
  return seconds(kRepeats, f) / static_cast<double>(plan.tiles);
}

template <typename Block>
void add_rows(Block& x) {
  x.begin(0);
  x.add_rows(0, 0, std::min<int64_t>(kRows, x.block.problem->queries));
}

void measure_packing(const Plan& plan, TileCache& cache, Costs& to) {
  const auto nothing = [](const KeyTile*, int64_t, int64_t) {};
  to.pack = seconds_of_tile(plan, [&] {
    cache.start(0);
    read(cache, plan, nothing);
  });
}

void measure_forward(Call& call, Costs& to) {
  to.setup = seconds(kRepeats, [&] {
    Workspace memory;
    const Plan plan(call.p, false, memory);
    const TileCache cache(plan, 1, 1, memory);
    const ForwardBlock block(plan, memory);
  });
  Workspace memory;
  const Plan plan(call.p, false, memory, true);
  TileCache cache(plan, 1, 1, memory);
  measure_packing(plan, cache, to);
  ForwardBlock x(plan, memory);
  KeyChunks chunks(plan, plan.tiles, call.p.heads, call.p.queries, memory);
  to.start = seconds(kRepeats, [&] {
    add_rows(x);
    x.start();
  });
  to.tile = seconds_of_tile(plan, [&] {
    read(cache, plan, [&](const KeyTile* tiles, int64_t t, int64_t n) { x.forward(tiles, t, n); });
  });
  to.finish = seconds(kRepeats, [&] { chunks.take(x, 0, 0, 0, {call.out.view(), {}, {}}); });
}

// A block adds to rows of a gradient that others have left: in the third-level cache, at best.
double seconds_of_mask(const Plan& plan, BackwardBlock& x) {
  const Problem& p = plan.p;
  std::vector<double> gradient(static_cast<size_t>(p.heads * p.queries * p.keys));
  const TensorView index(nullptr, DType::kFloat32, {1, p.heads, p.queries, p.keys});
  x.state.mask_gradient = &gradient;
  x.state.mask_index = &index;
  const int64_t blocks = p.heads * blocks_of_head(p);
  const double all = seconds(kRepeats, [&] {
    for (int64_t block = 0; block < blocks; ++block) {
      x.begin(0);
      const int64_t first = block % blocks_of_head(p) * kRows;
      x.add_rows(block / blocks_of_head(p), first, std::min(p.queries, first + kRows));
      for (int64_t t = 0; t < plan.tiles; ++t) plan.kernels.add_mask_gradients(x.block, x.state, t);
    }
  });
  return all / static_cast<double>(blocks * plan.tiles);
}

void measure_backward(Call& call, Costs& to) {
  fused_forward(call.p, {call.out.view(), {}, call.softmax.view()}, true);
  const ProblemGradients gradients = call.gradients();
  to.setup = seconds(kRepeats, [&] {
    Workspace memory;
    const Plan plan(call.p, true, memory);
    lay_out_backward(plan, 1, memory);
  });
  Workspace memory;
  const Plan plan(call.p, true, memory);
  TileCache cache(plan, 1, 1, memory);
  measure_packing(plan, cache, to);
  const Outputs from{call.out.view(), call.softmax.view(), call.dout.view(), {}};
  BackwardBlock x(plan, memory);
  std::vector<ChunkSums> terms;
  terms.emplace_back(plan, *gradients.terms, memory);
  terms.front().clear();
  std::vector<KeySums> keys;
  keys.emplace_back(plan, *gradients.terms, 1, memory);
  Stopper stopper(nullptr);
  keys.front().clear();
  BlockSums sums{0, terms.front(), keys.front(), BlockTurn(keys.front().order, 0, stopper, 0), {}};
  to.start = seconds(kRepeats, [&] {
    add_rows(x);
    x.start(sums, from, gradients);
  });
  const auto pass = [&] {
    return seconds_of_tile(plan, [&] {
      read(cache, plan, [&](const KeyTile* tiles, int64_t t, int64_t n) {
        x.backward(tiles, t, n, sums, *gradients.terms);
      });
    });
  };
  const double whole = pass();
  x.state.take_turn = [](void*, int64_t) { return false; };
  to.tile = pass();
  to.shared = std::max(0.0, whole - to.tile);
  to.finish = seconds(1, [&] { x.finish(sums, gradients); });
  const KeyWriter writer(plan, 1, memory);
  to.write = seconds_of_tile(plan, [&] {
    for (int64_t t = 0; t < plan.tiles; ++t) writer.write(keys.front(), 0, t, 0, gradients);
  });
  to.reduce = seconds(
      kRepeats, [&] { reduce_terms(plan, terms, keys, 0, 1, 1, 1, stopper, *gradients.terms); });
  to.mask = plan.p.visible.mask.given() ? seconds_of_mask(plan, x) : 0.0;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

// shape: heads, key heads, queries, keys, head size. `costs`: those of Costs, in its order.
void relpos_bench_costs(const int64_t* shape, int biased, int masked, int backward, double* costs) {
  const FloatMode mode(kFlushDenormals);
  Call call(shape, biased != 0, masked != 0);
  Costs found{};
  backward != 0 ? measure_backward(call, found) : measure_forward(call, found);
  for (double one : {found.setup, found.pack, found.start, found.tile, found.shared, found.mask,
                     found.finish, found.write, found.reduce}) {
    *costs++ = one;
  }
}

}  // extern "C"
#pragma GCC visibility pop
