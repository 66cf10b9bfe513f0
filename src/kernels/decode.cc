// The driver of few queries against many keys. A task is a block of rows of a group of heads and a
// chunk of keys; the partial states of the chunks are merged in order.
#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/decode_tiles.h"
#include "kernels/denormals.h"
#include "kernels/forward_block.h"
#include "kernels/softmax_state.h"

namespace relpos {
namespace {

constexpr int64_t kChunkTiles = 32;  // tiles of one task: 2048 keys
constexpr int64_t kPackedTiles = 4;  // packed at a time: they stay in L2
constexpr uint64_t kAll = ~uint64_t{0};

int64_t chunk_count(const Plan& plan) {
  return std::max<int64_t>(1, (plan.tiles + kChunkTiles - 1) / kChunkTiles);
}

// One worker's state where rows of keys and values are read in place.
class DirectRows {
 public:
  DirectRows(const Plan& plan, const DecodeKernels& kernels)
      : plan_(plan),
        p_(plan.p),
        kernels_(kernels),
        in_place_k_(!plan.rotates() && readable(p_.key)),
        in_place_v_(readable(p_.value)),
        k_(in_place_k_ ? 0 : kTile * plan.Dp),
        v_(in_place_v_ ? 0 : kTile * plan.Dvp) {}

  static int64_t floats(const Plan& plan) { return kTile * (plan.Dp + plan.Dvp); }

  // Brings the queries of a block that has started into the order that advance() needs.
  void arrange_queries(Block& block) const {
    for (int row = 0; in_place_k_ && row < block.rows; ++row) {
      kernels_.arrange(p_.key.dtype, plan_.D, block.q + row * plan_.Dp);
    }
  }

  // Advances a block over tiles [first, end); leaves o in natural order.
  void advance(ForwardScratch& x, int64_t kv_head, int64_t first, int64_t end, Stopper& stopper,
               int worker) {
    Block& block = x.block;
    kv_head_ = kv_head;
    for (int64_t t = first; t < end && !stopper.stopped(worker); ++t) {
      if ((t - first) % kTilesAtATime == 0) x.slide(t, std::min(kTilesAtATime, end - t));
      tile(block, t);
    }
    for (int row = 0; in_place_v_ && row < block.rows; ++row) {
      kernels_.restore(p_.value.dtype, plan_.Dv, block.o + row * plan_.Dvp);
    }
  }

 private:
  // A view whose rows the kernels read as they are.
  bool readable(const TensorView& view) const {
    const int64_t size = item_size(view.dtype);
    return view.strides[3] == 1 && view.shape[3] % kernels_.step(view.dtype) == 0 &&
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
      float* row = memory + c * padded;
      Plan::load_row(view, b, kv_head_, first + c, n, padded, row);
      if (keys) plan_.rotate_key(b, first + c, row);
    }
    return {DType::kFloat32, memory, padded, padded, count};
  }

  void tile(Block& block, int64_t t) {
    const int64_t b = block.batch, first = t * kTile, count = std::min(kTile, p_.keys - first);
    uint64_t visible[kDirectRows], any = 0, all = kAll;
    for (int row = 0; row < block.rows; ++row) {
      visible[row] = p_.visible.bits(b, block.head[row], block.index[row], t);
      any |= visible[row];
      all &= visible[row];
    }
    if (any == 0) return;
    set_positions(b, first, count);
    const TensorRows k = rows(p_.key, in_place_k_, true, b, first, count, k_.get());
    kernels_.scores(k, block.rows, block.q, plan_.Dp, p);
    for (int row = 0; row < block.rows; ++row) weigh(block, row, t, visible[row]);

    const TensorRows v = rows(p_.value, in_place_v_, false, b, first, count, v_.get());
    uint8_t keys[kTile];
    int seen = 0;
    for (uint64_t left = any; left != 0; left &= left - 1) {
      keys[seen++] = static_cast<uint8_t>(std::countr_zero(left));
    }
    if (any == all || finite(v, any & ~all)) {
      kernels_.values(v, block.rows, p, keys, seen, block.o, plan_.Dvp);
    } else {
      add_guarded_values(v, block, first, visible, keys, seen);
    }
  }

  // 0 times NaN is NaN. So the values are taken with 0 in the place of what is not finite, and that
  // reaches the rows that see it: the bits of the others do not depend on it.
  void add_guarded_values(const TensorRows& v, Block& block, int64_t first, const uint64_t* visible,
                          const uint8_t* keys, int count) {
    const int64_t stride = plan_.Dvp;
    guarded_.resize(static_cast<size_t>(kTile * stride));
    for (int n = 0; n < count; ++n) {
      const int64_t key = keys[n];
      float* row = guarded_.data() + key * stride;
      Plan::load_row(p_.value, block.batch, kv_head_, first + key, plan_.Dv, stride, row);
      if (in_place_v_) kernels_.arrange(p_.value.dtype, plan_.Dv, row);
      for (int64_t d = 0; d < stride; ++d) {
        if (std::isfinite(row[d])) continue;
        for (int r = 0; r < block.rows; ++r) {
          if (((visible[r] >> key) & 1U) != 0)
            block.o[r * stride + d] += p[r * kTile + key] * row[d];
        }
        row[d] = 0.0f;
      }
    }
    const TensorRows rows{DType::kFloat32, guarded_.data(), stride, v.dims, v.count};
    kernels_.values(rows, block.rows, p, keys, count, block.o, stride);
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

  void set_positions(int64_t b, int64_t first, int64_t count) {
    first_position_ = p_.positions.key(b, first);
    run_ = true;
    for (int64_t c = 0; !p_.positions.consecutive && c < kTile; ++c) {
      positions_[c] = c < count ? p_.positions.key(b, first + c) : first_position_ + c;
      run_ = run_ && positions_[c] == first_position_ + c;
    }
  }

  // Scores p of a row -> weights, after dropout, and what value tables sum.
  void weigh(Block& block, int row, int64_t t, uint64_t visible) {
    float* s = p + row * kTile;
    if (visible == 0) {
      std::fill_n(s, kTile, 0.0f);
      return;
    }
    const int64_t delta = first_position_ - block.position[row];
    const auto distance = [&](int64_t c) {
      return run_ ? delta + c : positions_[c] - block.position[row];
    };
    cells_.clear();
    slopes_.clear();
    alignas(64) float sums[kTile];
    bool summed = false;
    const auto add = [&](auto&& value) {
      if (!summed) std::fill_n(sums, kTile, 0.0f);
      summed = true;
      for (int64_t c = 0; c < kTile; ++c) sums[c] += value(c);
    };
    for (const Panel& panel : block.scores) {
      const float* cells = panel.cells[row];
      if (cells == nullptr) continue;
      if (run_) {
        cells_.push_back(cells + panel.offset(delta));
      } else {
        add([&](int64_t c) { return cells[panel.offset(row, distance(c))]; });
      }
    }
    if (block.key_bias[row] != nullptr) {
      const double* bias = block.key_bias[row] + t * kTile;
      add([&](int64_t c) { return static_cast<float>(bias[c] - block.key_shift[row]); });
    }
    constexpr int64_t kExact = int64_t{1} << 24;  // integers that float32 holds
    const int64_t sloped_delta = delta - block.shift[row];
    for (const Ramp& ramp : block.ramps) {
      const bool from_shift = block.shift[row] != 0 || ramp.shift[row] == 0.0;
      if (run_ && from_shift && sloped_delta > -kExact && sloped_delta < kExact - kTile) {
        slopes_.push_back({{}, {}});
        split(ramp.past[row], slopes_.back().past);
        split(ramp.future[row], slopes_.back().future);
      } else {
        add([&](int64_t c) { return static_cast<float>(ramp(row, distance(c))); });
      }
    }
    if (p_.visible.floating_mask()) {
      const TensorView& mask = p_.visible.mask;
      const int64_t at =
          p_.visible.mask_offset(block.batch, block.head[row], block.index[row], t * kTile);
      add([&](int64_t c) {
        const bool hidden = ((visible >> c) & 1U) == 0;
        return hidden ? 0.0f : static_cast<float>(to_log2(mask.load(at + c * mask.strides[3])));
      });
    }
    if (summed) cells_.push_back(sums);

    const RowTerms terms{cells_.data(),
                         static_cast<int>(cells_.size()),
                         slopes_.data(),
                         static_cast<int>(slopes_.size()),
                         static_cast<float>(sloped_delta),
                         visible};
    const RowFactors risen = kernels_.softmax(terms, s, block.m[row], block.l + row * kLanes);
    if (risen.first != 1.0f) rescale(block, row, risen.first);
    if (risen.second != 1.0f) rescale(block, row, risen.second);
    if (p_.dropout.active()) {
      alignas(64) float factors[kTile];
      tile_kernels().dropout(block, row, t, factors);
      for (int64_t c = 0; c < kTile; ++c) s[c] *= factors[c];
    }
    for (Panel& panel : block.values) {
      float* cells = panel.gradient[row];
      for (int64_t c = 0; c < kTile; ++c) {
        if (((visible >> c) & 1U) != 0) cells[panel.offset(distance(c))] += s[c];
      }
    }
  }

  void rescale(Block& block, int row, float factor) const {
    float* o = block.o + row * plan_.Dvp;
    for (int64_t d = 0; d < plan_.Dvp; ++d) o[d] *= factor;
    for (Panel& panel : block.values) {
      for (int64_t c = 0; c < panel.width + 2 * kPad; ++c) panel.gradient[row][c] *= factor;
    }
  }

  static void split(double slope, float* parts) {
    parts[0] = static_cast<float>(slope);
    parts[1] = std::isfinite(parts[0]) ? static_cast<float>(slope - parts[0]) : 0.0f;
  }

  const Plan& plan_;
  const Problem& p_;
  const DecodeKernels& kernels_;
  const bool in_place_k_, in_place_v_;
  Buffer<float> k_, v_;  // [kTile, Dp], [kTile, Dvp] where rows are not read in place
  int64_t kv_head_ = 0, first_position_ = 0;
  bool run_ = true;
  int64_t positions_[kTile];
  alignas(64) float p[kDirectRows * kTile];
  std::vector<const float*> cells_;
  std::vector<Slope> slopes_;
  std::vector<float> guarded_;  // [kTile, Dvp], where values are not finite
};

// One worker's packed tiles, where a block has rows enough to pay for them.
class PackedRows {
 public:
  PackedRows(const Plan& plan, const TileKernels&)
      : plan_(plan), memory_(kPackedTiles * plan.tile_floats()) {}

  static int64_t floats(const Plan& plan) { return kPackedTiles * plan.tile_floats(); }

  void arrange_queries(const Block&) const {}

  void advance(ForwardScratch& x, int64_t kv_head, int64_t first, int64_t end, Stopper& stopper,
               int worker) {
    for (int64_t t = first; t < end && !stopper.stopped(worker); t += kPackedTiles) {
      const int64_t count = std::min(kPackedTiles, end - t);
      KeyTile tiles[kPackedTiles];
      int64_t positions[kPackedTiles * kTile];
      for (int64_t n = 0; n < count; ++n) {
        tiles[n] =
            plan_.pack_tile(x.block.batch, kv_head, t + n, memory_.get() + n * plan_.tile_floats(),
                            positions + n * kTile, x.row());
      }
      x.forward(tiles, t, count);
    }
  }

 private:
  const Plan& plan_;
  Buffer<float> memory_;
};

// o[Dv] and (m, l) behind it: the state of one row after one chunk.
class Partials {
 public:
  Partials(const Plan& plan, int64_t groups, int64_t chunks, int64_t rows)
      : plan_(plan),
        chunks_(chunks),
        rows_(rows),
        memory_(chunks == 1 ? 0 : groups * chunks * rows * (plan.Dvp + 2)) {}

  static int64_t floats(const Plan& plan) {
    const int64_t chunks = chunk_count(plan);
    return chunks == 1 ? 0 : plan.p.batch * plan.p.heads * plan.p.queries * chunks * (plan.Dvp + 2);
  }

  float* at(int64_t group, int64_t chunk, int64_t row) const {
    return memory_.get() + ((group * chunks_ + chunk) * rows_ + row) * (plan_.Dvp + 2);
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
  const Plan& plan_;
  const int64_t chunks_, rows_;
  Buffer<float> memory_;
};

template <typename Rows, typename Kernels>
void run(const Plan& plan, const TileKernels& tiles, const Kernels& kernels, int threads,
         Stopper& stopper, const ForwardResults& to) {
  const Problem& p = plan.p;
  const int64_t rows = p.group() * p.queries, groups = p.batch * p.kv_heads;
  const int64_t blocks = (rows + kRows - 1) / kRows, chunks = chunk_count(plan);
  const Partials partials(plan, groups, chunks, rows);
  const auto head_of = [&](int64_t group, int64_t row) {
    return group % p.kv_heads * p.group() + row / p.queries;
  };
  std::vector<ForwardScratch> scratch;
  std::vector<Rows> workers;
  for (int worker = 0; worker < threads; ++worker) {
    scratch.emplace_back(plan, tiles);
    workers.emplace_back(plan, kernels);
  }
  parallel_for(groups * blocks * chunks, threads, stopper, [&](int64_t task, int worker) {
    const int64_t group = task / (blocks * chunks), block = task / chunks % blocks,
                  chunk = task % chunks;
    const FloatMode mode(float_control(p, group / p.kv_heads, group % p.kv_heads));
    ForwardScratch& x = scratch[static_cast<size_t>(worker)];
    x.begin(group / p.kv_heads);
    for (int64_t row = block * kRows; row < std::min(rows, (block + 1) * kRows); ++row) {
      x.add_row(head_of(group, row), row % p.queries);
    }
    x.start();
    workers[static_cast<size_t>(worker)].arrange_queries(x.block);
    const auto [first, end] = plan.tile_range(x.block);
    x.run([&, first = first, end = end] {
      workers[static_cast<size_t>(worker)].advance(
          x, group % p.kv_heads, std::max(first, chunk * kChunkTiles),
          std::min(end, (chunk + 1) * kChunkTiles), stopper, worker);
    });
    for (int row = 0; row < x.block.rows; ++row) {
      float* o = x.block.o + row * plan.Dvp;
      if (chunks == 1) {
        const float sum = x.sum(row);
        finish_rows(plan, x.block.batch, x.block.head[row], x.block.index[row], 1, x.block.m + row,
                    &sum, o, plan.Dvp, to);
        continue;
      }
      float* part = partials.at(group, chunk, block * kRows + row);
      std::copy_n(o, plan.Dvp, part);
      part[plan.Dvp] = x.block.m[row];
      part[plan.Dvp + 1] = x.sum(row);
    }
  });
  stopper.check();
  for (int64_t group = 0; chunks > 1 && group < groups; ++group) {
    check_cancelled();
    for (int64_t row = 0; row < rows; ++row) {
      partials.merge(group, row);
      float* o = partials.at(group, 0, row);
      finish_rows(plan, group / p.kv_heads, head_of(group, row), row % p.queries, 1, o + plan.Dvp,
                  o + plan.Dvp + 1, o, plan.Dvp, to);
    }
  }
}

}  // namespace

void decode(const Plan& plan, const TileKernels& kernels, int threads, Stopper& stopper,
            const ForwardResults& to) {
  if (plan.direct) {
    run<DirectRows>(plan, kernels, decode_kernels(), threads, stopper, to);
  } else {
    run<PackedRows>(plan, kernels, kernels, threads, stopper, to);
  }
}

int64_t decode_bytes(const Plan& plan, int threads) {
  const int64_t worker = ForwardScratch::floats(plan) +
                         (plan.direct ? DirectRows::floats(plan) : PackedRows::floats(plan));
  return 4 * (threads * worker + Partials::floats(plan));
}

}  // namespace relpos
