// The driver of few queries against many keys.
#include <algorithm>
#include <cmath>

#include "kernels/forward_block.h"

namespace relpos {
namespace {

constexpr int64_t kDecodeTiles = 32;  // tiles of one task: 2048 keys
constexpr int64_t kPackedTiles = 4;   // packed at a time: they stay in L2

int64_t chunk_count(const Plan& plan) {
  return std::max<int64_t>(1, (plan.tiles + kDecodeTiles - 1) / kDecodeTiles);
}

}  // namespace

// A task is up to kRows rows of a group of heads and a chunk of keys; the partial states of the
// chunks are merged in order.
void decode(const Plan& plan, const TileKernels& kernels, int threads, Stopper& stopper,
            const TensorView& out, const TensorView& lse) {
  const Problem& p = plan.p;
  const int64_t rows = p.group() * p.queries;
  const int64_t blocks = (rows + kRows - 1) / kRows;
  const int64_t chunks = chunk_count(plan);
  const int64_t row_floats = plan.Dvp + 2;  // o, m, l
  const int64_t groups = p.batch * p.kv_heads;
  Buffer<float> partial(groups * chunks * rows * row_floats);
  const auto state = [&](int64_t group, int64_t chunk, int64_t row) {
    return partial.get() + ((group * chunks + chunk) * rows + row) * row_floats;
  };
  std::vector<ForwardScratch> scratch;
  std::vector<Buffer<float>> packs;
  for (int worker = 0; worker < threads; ++worker) {
    scratch.emplace_back(plan, kernels);
    packs.emplace_back(kPackedTiles * plan.tile_floats());
  }
  parallel_for(groups * blocks * chunks, threads, stopper, [&](int64_t task, int worker) {
    const int64_t group = task / (blocks * chunks), block = task / chunks % blocks,
                  chunk = task % chunks;
    const int64_t b = group / p.kv_heads, kv_head = group % p.kv_heads;
    ForwardScratch& x = scratch[static_cast<size_t>(worker)];
    x.begin(b);
    for (int64_t row = block * kRows; row < std::min(rows, (block + 1) * kRows); ++row) {
      x.add_row(kv_head * p.group() + row / p.queries, row % p.queries);
    }
    x.start();
    auto [first, end] = plan.tile_range(x.block);
    first = std::max(first, chunk * kDecodeTiles);
    end = std::min(end, (chunk + 1) * kDecodeTiles);
    for (int64_t t = first; t < end && !stopper.stopped(worker); t += kPackedTiles) {
      const int64_t count = std::min(kPackedTiles, end - t);
      KeyTile tiles[kPackedTiles];
      int64_t positions[kPackedTiles * kTile];
      for (int64_t n = 0; n < count; ++n) {
        tiles[n] = plan.pack_tile(b, kv_head, t + n,
                                  packs[static_cast<size_t>(worker)].get() + n * plan.tile_floats(),
                                  positions + n * kTile, x.row());
      }
      x.forward(tiles, t, count);
    }
    x.add_value_tables();
    for (int row = 0; row < x.block.rows; ++row) {
      float* to = state(group, chunk, block * kRows + row);
      std::copy_n(x.block.o + row * plan.Dvp, plan.Dvp, to);
      to[plan.Dvp] = x.block.m[row];
      to[plan.Dvp + 1] = x.sum(row);
    }
  });
  stopper.check();
  parallel_for(groups, threads, stopper, [&](int64_t group, int) {
    for (int64_t row = 0; row < rows; ++row) {
      float* o = state(group, 0, row);
      float m = -HUGE_VALF, l = 0.0f;
      for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        m = std::max(m, state(group, chunk, row)[plan.Dvp]);
      }
      for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        const float* part = state(group, chunk, row);
        const bool unseen = part[plan.Dvp] == -HUGE_VALF;
        const float factor = unseen ? 0.0f : std::exp2(part[plan.Dvp] - m);
        l += part[plan.Dvp + 1] * factor;
        for (int64_t d = 0; d < plan.Dv; ++d) {
          const float value = unseen ? 0.0f : part[d] * factor;
          o[d] = chunk == 0 ? value : o[d] + value;
        }
      }
      const int64_t h = group % p.kv_heads * p.group() + row / p.queries;
      finish_row(p, group / p.kv_heads, h, row % p.queries, m, l, o, out, lse);
    }
  });
}

int64_t decode_bytes(const Plan& plan, int threads) {
  const Problem& p = plan.p;
  return 4 * (threads * (ForwardScratch::floats(plan) + kPackedTiles * plan.tile_floats()) +
              p.batch * p.heads * p.queries * chunk_count(plan) * (plan.Dvp + 2));
}

}  // namespace relpos
