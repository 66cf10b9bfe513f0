// The driver of few queries against many keys. A task is a block of rows of a group of heads and a
// chunk of keys; the partial states of the chunks are merged in order.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <optional>

#include "kernels/denormals.h"
#include "kernels/forward_block.h"
#include "kernels/rows.h"
#include "kernels/softmax_state.h"

namespace relpos {
namespace {

constexpr int64_t kLeastTiles = 8, kMostTiles = 32;  // of one task: 512 to 2048 keys
constexpr int64_t kWantedTasks = 64;                 // of a batch row

int64_t blocks_of_group(const Problem& p) { return (p.group() * p.queries + kRows - 1) / kRows; }

// Never a function of the batch or of threads: a batch row keeps its bits.
int64_t tiles_of_chunk(const Plan& plan) {
  const int64_t tiles = plan.tiles * plan.p.kv_heads * blocks_of_group(plan.p);
  return std::clamp(tiles / kWantedTasks, kLeastTiles, kMostTiles);
}

int64_t chunk_count(const Plan& plan) {
  const int64_t tiles = tiles_of_chunk(plan);
  return std::max<int64_t>(1, (plan.tiles + tiles - 1) / tiles);
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
    for (int64_t t = first; t < end && !stopper.stopped(worker); ++t) {
      if ((t - first) % kTilesAtATime == 0) x.before(t, std::min(kTilesAtATime, end - t));
      read_tile(x, t);
    }
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
    for (int row = 0; row < block.rows; ++row) {
      visible[row] =
          p_.visible.bits(b, block.head[row], block.index[row], t, plan_.kernels.mask_bits);
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

// o[Dvp] and (m, l) behind it: the state of one row after one chunk.
class Partials {
 public:
  Partials(const Plan& plan, Workspace& memory)
      : plan_(plan),
        chunks_(chunk_count(plan)),
        rows_(plan.p.group() * plan.p.queries),
        memory_(memory.take<float>(
            chunks_ == 1 ? 0 : plan.p.batch * plan.p.kv_heads * chunks_ * rows_ * size())),
        blocks_(chunks_ == 1 ? 0 : plan.p.batch * plan.p.kv_heads * blocks_of_group(plan.p)) {}

  float* at(int64_t group, int64_t chunk, int64_t row) const {
    return memory_.get() + ((group * chunks_ + chunk) * rows_ + row) * size();
  }

  // Counts a chunk of a block of a group's rows; true for the last of them, which merges.
  bool is_last(int64_t group, int64_t block) {
    std::atomic<int64_t>& done = blocks_[group * blocks_of_group(plan_.p) + block];
    return done.fetch_add(1, std::memory_order_acq_rel) + 1 == chunks_;
  }
  // Sums the chunks of a row into those of chunk 0. The common reference leaves every chunk a sum below
  // 1, so that no sum of outputs overflows.
  void merge(int64_t group, int64_t row) const {
    float* o = at(group, 0, row);
    float m = -HUGE_VALF, l = 0.0f;
    for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
      const float* part = at(group, chunk, row) + plan_.Dvp;
      m = std::max(m, static_cast<float>(SoftmaxState::of(part[0], part[1]).reference) + 1.0f);
    }
    for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
      const float* part = at(group, chunk, row);
      const bool unseen = part[plan_.Dvp] == -HUGE_VALF;
      // In double: sums of up to 2^60 and more may meet a factor below the least float.
      const double factor =
          unseen ? 0.0 : std::exp2(static_cast<double>(part[plan_.Dvp]) - static_cast<double>(m));
      const auto scaled = [&](float x) {
        return static_cast<float>(static_cast<double>(x) * factor);
      };
      l += scaled(part[plan_.Dvp + 1]);
      for (int64_t d = 0; d < plan_.Dv; ++d) {
        const float value = unseen ? 0.0f : scaled(part[d]);
        o[d] = chunk == 0 ? value : o[d] + value;
      }
    }
    o[plan_.Dvp] = m;
    o[plan_.Dvp + 1] = l;
  }

 private:
  int64_t size() const noexcept { return plan_.Dvp + 2; }

  const Plan& plan_;
  const int64_t chunks_, rows_;
  Buffer<float> memory_;
  std::vector<std::atomic<int64_t>> blocks_;  // chunks that are done
};

// Scratch of the pass.
struct Decode {
  std::vector<ForwardBlock> blocks;
  std::vector<DirectRows> direct;
  std::optional<TileCache> packed;  // where a block has rows enough to pay for it
  Partials partials;

  Decode(const Plan& plan, int threads, Workspace& memory) : partials(plan, memory) {
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
    packed->read(0, group, first, end, stopper, worker,
                 [&](const KeyTile* tiles, int64_t t, int64_t n) { x.forward(tiles, t, n); });
  }
};

// Calls f(row, head, query) for rows [first, end) of a group of heads. The query is counted: at 12 rows
// divisions were a fifth of a call's time.
template <typename F>
void for_each_row(const Problem& p, int64_t group, int64_t first, int64_t end, F&& f) {
  int64_t head = group % p.kv_heads * p.group() + first / p.queries, query = first % p.queries;
  for (int64_t row = first; row < end; ++row) {
    f(row, head, query);
    if (++query == p.queries) {
      query = 0;
      ++head;
    }
  }
}

// One chunk of keys of one block of a group's rows.
struct ChunkTask {
  int64_t group, b, kv_head, block, chunk, first_row, end_row;
};

// Writes what the chunk gives: to the results where it is the only one, else to its partials.
void compute_chunk(const Plan& plan, Decode& scratch, const ChunkTask& at, Stopper& stopper,
                   int worker, const ForwardResults& to) {
  const Problem& p = plan.p;
  const FloatMode mode(float_control(p, at.b, at.kv_head));
  ForwardBlock& x = scratch.blocks[worker];
  x.begin(at.b);
  for_each_row(p, at.group, at.first_row, at.end_row,
               [&](int64_t, int64_t head, int64_t query) { x.add_row(head, query); });
  x.start(at.chunk == 0);
  if (plan.direct) scratch.direct[worker].arrange_queries(x.block);
  const auto [first, end] = x.tile_range();
  const int64_t tiles = tiles_of_chunk(plan), from = std::max(first, at.chunk * tiles);
  x.run([&, until = std::min(end, (at.chunk + 1) * tiles)] {
    scratch.advance(x, at.group, at.kv_head, from, until, stopper, worker);
  });
  float sums[kRows];
  for (int row = 0; row < x.block.rows; ++row) sums[row] = x.sum(row);
  if (chunk_count(plan) == 1) {
    for_each_head(x.block, [&](int64_t head, int row, int count) {
      finish_rows(plan, at.b, head, x.block.index[row], count, x.state.m + row, sums + row,
                  x.state.o + row * plan.Dvp, plan.Dvp, to);
    });
    return;
  }
  for (int row = 0; row < x.block.rows; ++row) {
    float* part = scratch.partials.at(at.group, at.chunk, at.first_row + row);
    std::copy_n(x.state.o + row * plan.Dvp, plan.Dvp, part);
    part[plan.Dvp] = x.state.m[row];
    part[plan.Dvp + 1] = sums[row];
  }
}

}  // namespace

bool divides_keys(const Plan& plan) {
  constexpr int64_t kAlways = 16, kMost = 2 * kRows, kKeysForEach = 16;
  const int64_t queries = plan.p.queries;
  return queries <= kAlways ||
         (queries <= kMost && plan.p.keys >= kKeysForEach * queries && !plan.skips_tiles);
}

void decode(const Plan& plan, int threads, Stopper& stopper, const ForwardResults& to) {
  const Problem& p = plan.p;
  const int64_t rows = p.group() * p.queries, groups = p.batch * p.kv_heads;
  const int64_t blocks = blocks_of_group(p), chunks = chunk_count(plan);
  Workspace memory;
  Decode scratch(plan, threads, memory);
  parallel_for(groups * blocks * chunks, threads, stopper, [&](int64_t task, int worker) {
    const int64_t group = task / (blocks * chunks), block = task / chunks % blocks;
    const ChunkTask at{group,
                       group / p.kv_heads,
                       group % p.kv_heads,
                       block,
                       task % chunks,
                       block * kRows,
                       std::min(rows, (block + 1) * kRows)};
    compute_chunk(plan, scratch, at, stopper, worker, to);
    if (chunks == 1 || stopper.stopped(worker) || !scratch.partials.is_last(group, block)) return;
    for_each_row(p, group, at.first_row, at.end_row, [&](int64_t row, int64_t h, int64_t query) {
      scratch.partials.merge(group, row);
      float* o = scratch.partials.at(group, 0, row);
      finish_rows(plan, at.b, h, query, 1, o + plan.Dvp, o + plan.Dvp + 1, o, plan.Dvp, to);
    });
  });
  stopper.check();
}

void lay_out_decode(const Plan& plan, int threads, Workspace& memory) {
  Decode(plan, threads, memory);
}

}  // namespace relpos
