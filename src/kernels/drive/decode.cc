// The driver of few queries against many keys. A task is a block of rows of a group of heads and a
// chunk of keys; the partial states of the chunks are merged in order.
#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>

#include "kernels/block/load_rows.h"
#include "kernels/drive/denormals.h"
#include "kernels/drive/key_chunks.h"

namespace relpos {
namespace {

// A group is a key head and the query heads that share it.
int64_t blocks_of_group(const Problem& p) { return (p.group() * p.queries + kRows - 1) / kRows; }

// 512 to 2048 keys. Never a function of the batch or of threads: a batch row keeps its bits.
int64_t tiles_to_decode(const Plan& plan) {
  constexpr int64_t kWantedTasks = 64, kLeast = 8, kMost = 32;
  const int64_t blocks = plan.p.kv_heads * blocks_of_group(plan.p);
  return std::min(kMost, KeyChunks::tiles_for(plan, blocks, kWantedTasks, kLeast));
}

// Rows of bfloat16 read in place come as their even columns, then their odd ones, in each step of two
// vectors. Brings a row into that order, or `back`.
void reorder(DType dtype, int64_t lanes, int64_t n, float* row, bool back) {
  if (dtype != DType::kBFloat16) return;
  float step[2 * kLanes];
  for (int64_t x = 0; x < n; x += 2 * lanes) {
    std::copy_n(row + x, 2 * lanes, step);
    for (int64_t c = 0; c < 2 * lanes; ++c) {
      const int64_t mixed = c % 2 * lanes + c / 2;
      if (back) {
        row[x + c] = step[mixed];
      } else {
        row[x + mixed] = step[c];
      }
    }
  }
}

// One worker's state where rows of keys and values are read in place.
class DirectRows {
 public:
  DirectRows(const Plan& plan, Workspace& memory)
      : plan_(plan),
        p_(plan.p),
        in_place_k_(plan.rotations.none() && readable(p_.key)),
        in_place_v_(readable(p_.value)),
        k_(memory.take<float>(kTile * plan.Dp)),
        v_(memory.take<float>(kTile * plan.Dvp)) {}

  // Brings the queries of a block that has started into the order that advance() needs.
  void arrange_queries(const Block& block) const {
    for (int row = 0; in_place_k_ && row < block.rows; ++row) {
      reorder(p_.key.dtype, plan_.kernels.lanes, plan_.D, block.q + row * plan_.Dp, false);
    }
  }

  // Advances a block over tiles [first, end); leaves o in natural order.
  void advance(ForwardBlock& x, int64_t kv_head, int64_t first, int64_t end, Stopper& stopper,
               int worker) {
    kv_head_ = kv_head;
    x.over_seen(first, end, [&](int64_t from, int64_t until) {
      for (int64_t t = from; t < until && !stopper.stopped(worker); ++t) {
        if ((t - from) % kTilesAtATime == 0) x.before(t, std::min(kTilesAtATime, until - t));
        read_tile(x, t);
      }
    });
    for (int row = 0; in_place_v_ && row < x.block.rows; ++row) {
      reorder(p_.value.dtype, plan_.kernels.lanes, plan_.Dv, x.state.o + row * plan_.Dvp, true);
    }
  }

 private:
  // A view whose rows the kernels read as they are.
  bool readable(const TensorView& view) const {
    const int64_t size = item_size(view.dtype);
    return view.strides[3] == 1 && view.shape[3] % plan_.kernels.step(view.dtype) == 0 &&
           reinterpret_cast<uintptr_t>(view.data) % static_cast<uintptr_t>(size) == 0;
  }

  // Rows [first, first + count) of a head, in place or widened (and rotated) into `memory`.
  TensorRows rows(const TensorView& view, bool in_place, bool keys, int64_t b, int64_t first,
                  int64_t count, float* memory) const {
    const int64_t n = keys ? plan_.D : plan_.Dv, padded = keys ? plan_.Dp : plan_.Dvp;
    if (in_place) {
      const auto* bytes = static_cast<const std::byte*>(view.data);
      return {view.dtype, bytes + view.offset({b, kv_head_, first, 0}) * item_size(view.dtype),
              view.strides[2], n, count};
    }
    for (int64_t c = 0; c < count; ++c) {
      load_row(view, b, kv_head_, first + c, n, padded, memory + c * padded);
      if (keys) plan_.rotations.apply(false, b, kv_head_, first + c, memory + c * padded);
    }
    return {DType::kFloat32, memory, padded, padded, count};
  }

  void read_tile(ForwardBlock& x, int64_t t) {
    const Block& block = x.block;
    const int64_t b = block.batch, first = t * kTile, count = std::min(kTile, p_.keys - first);
    uint64_t visible[kDirectRows], any = 0, all = ~uint64_t{0};
    const uint64_t* words = block.seen_words(t);
    for (int row = 0; row < block.rows; ++row) {
      visible[row] = p_.visible.bits_but_of_tiles(b, block.head[row], block.index[row], t,
                                                  plan_.kernels.mask_bits);
      if (words != nullptr) visible[row] &= words[row];
      any |= visible[row];
      all &= visible[row];
    }
    if (any == 0) return;
    const TensorRows k = rows(p_.key, in_place_k_, true, b, first, count, k_.get());
    plan_.kernels.row_scores(k, block.rows, block.q, plan_.Dp, weights_);
    KeyTile tile;
    int64_t positions[kTile];
    plan_.place(b, t, positions, tile);
    x.weigh(tile, t, weights_);

    const TensorRows v = rows(p_.value, in_place_v_, false, b, first, count, v_.get());
    uint8_t keys[kTile];
    int seen = 0;
    for (uint64_t left = any; left != 0; left &= left - 1) {
      keys[seen++] = static_cast<uint8_t>(std::countr_zero(left));
    }
    if (any == all || finite(v, any & ~all)) {
      plan_.kernels.add_row_values(v, block.rows, weights_, keys, seen, x.state.o, plan_.Dvp);
    } else {
      add_guarded_values(v, x, first, visible, keys, seen);
    }
  }

  // 0 times NaN is NaN. So the values are taken with 0 in the place of what is not finite, and that
  // reaches the rows that see it: the bits of the others do not depend on it.
  void add_guarded_values(const TensorRows& v, ForwardBlock& x, int64_t first,
                          const uint64_t* visible, const uint8_t* keys, int count) {
    const int64_t stride = plan_.Dvp;
    guarded_.resize(kTile * stride);
    for (int n = 0; n < count; ++n) {
      const int64_t key = keys[n];
      float* row = guarded_.data() + key * stride;
      load_row(p_.value, x.block.batch, kv_head_, first + key, plan_.Dv, stride, row);
      if (in_place_v_) reorder(p_.value.dtype, plan_.kernels.lanes, plan_.Dv, row, false);
      for (int64_t d = 0; d < stride; ++d) {
        if (std::isfinite(row[d])) continue;
        for (int r = 0; r < x.block.rows; ++r) {
          if (((visible[r] >> key) & 1U) != 0)
            x.state.o[r * stride + d] += weights_[r * kTile + key] * row[d];
        }
        row[d] = 0.0f;
      }
    }
    const TensorRows rows{DType::kFloat32, guarded_.data(), stride, v.dims, v.count};
    plan_.kernels.add_row_values(rows, x.block.rows, weights_, keys, count, x.state.o, stride);
  }

  bool finite(const TensorRows& v, uint64_t keys) const {
    const int64_t size = item_size(v.dtype);
    for (; keys != 0; keys &= keys - 1) {
      const auto* bytes = static_cast<const std::byte*>(v.data);
      const TensorView row(const_cast<std::byte*>(bytes + std::countr_zero(keys) * v.stride * size),
                           v.dtype, {v.dims});
      for (int64_t d = 0; d < v.dims; ++d) {
        if (!std::isfinite(row.load(d))) return false;
      }
    }
    return true;
  }

  const Plan& plan_;
  const Problem& p_;
  const bool in_place_k_, in_place_v_;
  Buffer<float> k_, v_;  // [kTile, Dp], [kTile, Dvp] where rows are not read in place
  int64_t kv_head_ = 0;
  alignas(64) float weights_[round_up(kDirectRows, kGroup) * kTile] = {};
  std::vector<float> guarded_;  // [kTile, Dvp], where values are not finite
};

// Scratch of the pass.
struct Decode {
  std::vector<ForwardBlock> blocks;
  std::vector<DirectRows> direct;
  std::optional<TileCache> packed;  // where a block has rows enough to pay for it
  KeyChunks chunks;

  Decode(const Plan& plan, int threads, Workspace& memory)
      : chunks(plan, tiles_to_decode(plan), plan.p.batch * plan.p.kv_heads,
               plan.p.group() * plan.p.queries, memory) {
    for (int n = 0; n < threads; ++n) {
      blocks.emplace_back(plan, memory);
      if (plan.direct) direct.emplace_back(plan, memory);
    }
    if (!plan.direct) packed.emplace(plan, 0, threads, memory);
  }

  // Runs a block that has started over tiles [first, end) of a group of heads.
  void advance(ForwardBlock& x, int64_t group, int64_t kv_head, int64_t first, int64_t end,
               Stopper& stopper, int worker) {
    if (!packed) {
      direct[worker].advance(x, kv_head, first, end, stopper, worker);
      return;
    }
    x.over_seen(first, end, [&](int64_t from, int64_t until) {
      packed->read(0, group, from, until, stopper, worker,
                   [&](const KeyTile* tiles, int64_t t, int64_t n) { x.forward(tiles, t, n); });
    });
  }
};

// Rows [first, end) of a group.
void add_rows(const Problem& p, int64_t group, int64_t first, int64_t end, ForwardBlock& x) {
  int64_t head = group % p.kv_heads * p.group() + first / p.queries, query = first % p.queries;
  for (int64_t row = first; row < end; ++head, query = 0) {
    const int64_t count = std::min(p.queries - query, end - row);
    x.add_rows(head, query, query + count);
    row += count;
  }
}

}  // namespace

void decode(const Plan& plan, int threads, Stopper& stopper, const ForwardResults& to) {
  const Problem& p = plan.p;
  const int64_t rows = p.group() * p.queries, groups = p.batch * p.kv_heads;
  Workspace memory;
  Decode scratch(plan, threads, memory);
  const int64_t blocks = blocks_of_group(p), chunks = scratch.chunks.count();
  parallel_for(groups * blocks * chunks, threads, stopper, [&](int64_t task, int worker) {
    const int64_t group = task / (blocks * chunks), chunk = task % chunks;
    const int64_t b = group / p.kv_heads, kv_head = group % p.kv_heads;
    const int64_t block = task / chunks % blocks;
    ForwardBlock& x = scratch.blocks[worker];
    {
      const FloatMode mode(float_control(p, b, kv_head));
      x.begin(b);
      add_rows(p, group, block * kRows, std::min(rows, (block + 1) * kRows), x);
      x.start(chunk == 0);
      if (plan.direct) scratch.direct[worker].arrange_queries(x.block);
      const auto [first, end] = x.tile_range();
      const auto [from, until] = scratch.chunks.range(chunk, first, end);
      x.run([&, from = from, until = until] {
        scratch.advance(x, group, kv_head, from, until, stopper, worker);
      });
      scratch.chunks.take(x, group, block, chunk, to);
    }
    if (!stopper.stopped(worker)) scratch.chunks.merge(x, group, block, to);
  });
  stopper.check();
}

void lay_out_decode(const Plan& plan, int threads, Workspace& memory) {
  Decode(plan, threads, memory);
}

}  // namespace relpos
