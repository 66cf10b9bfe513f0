// Drivers of the fused forward pass: whole prompts in waves of packed heads, few queries split over
// keys, and the dense forms.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/block_setup.h"
#include "kernels/fused.h"
#include "kernels/schedule.h"

namespace relpos {
namespace {

constexpr int64_t kDecodeQueries = 16;  // up to here rows of a group of heads share one block
constexpr int64_t kDecodeTiles = 32;    // tiles of one task: 2048 keys
constexpr int64_t kPackedTiles = 4;     // packed at a time while decoding: stays in L2

// Forward state of a block, and the histogram of weights that value tables need.
class ForwardScratch : public BlockScratch {
 public:
  ForwardScratch(const Plan& plan, const TileKernels& kernels)
      : BlockScratch(plan, kernels),
        plan_(plan),
        kernels_(kernels),
        m_(kRows),
        l_(kRows * kLanes),
        o_(kRows * plan.Dvp),
        row_(std::max(plan.Dp, plan.Dvp)) {
    block.m = m_.get();
    block.l = l_.get();
    block.o = o_.get();
    for (const TablePlan& table : plan.value_tables) {
      weights_.emplace_back(kRows * cell_stride(table.window));
    }
  }

  float* row() const noexcept { return row_.get(); }

  void start() {
    load_queries();
    std::fill_n(m_.get(), kRows, -HUGE_VALF);
    std::fill_n(l_.get(), kRows * kLanes, 0.0f);
    std::fill_n(o_.get(), kRows * plan_.Dvp, 0.0f);
    cuts_.clear();
    for (size_t n = 0; n < plan_.value_tables.size(); ++n) {
      const TablePlan& table = plan_.value_tables[n];
      const int64_t stride = cell_stride(table.window);
      cuts_.push_back(cut(table.window));
      std::fill_n(weights_[n].get(), block.rows * stride, 0.0f);
      Panel panel;
      panel.lo = table.window.lo + cuts_[n].first;
      panel.width = cuts_[n].width;
      for (int row = 0; row < block.rows; ++row)
        panel.gradient[row] = weights_[n].get() + row * stride;
      block.values.push_back(panel);
    }
  }

  // Adds the value tables under their weights to o.
  void add_value_tables() {
    for (size_t n = 0; n < plan_.value_tables.size(); ++n) {
      const TablePlan& table = plan_.value_tables[n];
      const int64_t stride = cell_stride(table.window), width = cuts_[n].width;
      fold_pads(table, block.rows, width, weights_[n].get(), stride);
      for_each_head([&](int64_t head, int first, int rows) {
        const float* weights = weights_[n].get() + first * stride + kPad;
        const float* values = table.head_rows(head) + cuts_[n].first * table.padded_rank;
        float* o = block.o + first * plan_.Dvp;
        if (table.finite) {
          kernels_.gemm(rows, plan_.Dvp, width, weights, stride, 1, values, table.padded_rank, o,
                        plan_.Dvp, true);
        } else {
          skip_zero_product(rows, plan_.Dv, width, weights, stride, 1, values, table.padded_rank, o,
                            plan_.Dvp);
        }
      });
    }
  }

  float sum(int row) const noexcept {
    return std::accumulate(block.l + row * kLanes, block.l + (row + 1) * kLanes, 0.0f);
  }

 private:
  const Plan& plan_;
  const TileKernels& kernels_;
  Buffer<float> m_, l_, o_, row_;
  std::vector<Buffer<float>> weights_;
  std::vector<Cut> cuts_;
};

// out and lse of one row from its unnormalised output, which it overwrites.
void finish_row(const Problem& p, int64_t b, int64_t h, int64_t i, float m, float l, float* o,
                const TensorView& out, const TensorView& lse) {
  const bool nothing = l == 0.0f;
  const float inverse = nothing ? 0.0f : 1.0f / l;
  for (int64_t d = 0; d < p.value_dim; ++d) o[d] = nothing ? 0.0f : o[d] * inverse;
  Plan::store_row(out, b, h, i, p.value_dim, o);
  if (lse.given()) {
    const double log2_sum =
        nothing ? -HUGE_VAL : static_cast<double>(m) + std::log2(static_cast<double>(l));
    lse.store(lse.offset({b, h, i}), log2_sum * kLn2);
  }
}

void prefill(const Plan& plan, const TileKernels& kernels, int threads, Stopper& stopper,
             const TensorView& out, const TensorView& lse) {
  const Problem& p = plan.p;
  std::vector<ForwardScratch> scratch;
  for (int worker = 0; worker < threads; ++worker) scratch.emplace_back(plan, kernels);
  for_each_packed_block(plan, threads, stopper, [&](const PackedBlock& at, int worker) {
    ForwardScratch& x = scratch[static_cast<size_t>(worker)];
    x.begin(at.batch);
    for (int64_t i = at.first_query; i < at.end_query; ++i) x.add_row(at.head, i);
    x.start();
    const auto [first, end] = plan.tile_range(x.block);
    kernels.forward(x.block, at.tiles + first, first, end - first);
    x.add_value_tables();
    for (int row = 0; row < x.block.rows; ++row) {
      finish_row(p, at.batch, at.head, x.block.index[row], x.block.m[row], x.sum(row),
                 x.block.o + row * plan.Dvp, out, lse);
    }
  });
}

// Few queries against many keys: a task is up to kRows rows of a group of heads and a chunk of keys;
// the partial states of the chunks are merged in order.
void decode(const Plan& plan, const TileKernels& kernels, int threads, Stopper& stopper,
            const TensorView& out, const TensorView& lse) {
  const Problem& p = plan.p;
  const int64_t rows = p.group() * p.queries;
  const int64_t blocks = (rows + kRows - 1) / kRows;
  const int64_t chunks = std::max<int64_t>(1, (plan.tiles + kDecodeTiles - 1) / kDecodeTiles);
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
      kernels.forward(x.block, tiles, t, count);
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

}  // namespace

int64_t forward_bytes(const Plan& plan, int threads) {
  const Problem& p = plan.p;
  int64_t floats =
      BlockScratch::floats(plan) + kRows * (1 + kLanes + plan.Dvp) + plan.Dp + plan.Dvp;
  for (const TablePlan& table : plan.value_tables) {
    floats += kRows * (std::min(table.window.width, p.keys + kRows) + 2 * kPad + kLanes);
  }
  if (p.queries <= kDecodeQueries) {
    const int64_t chunks = std::max<int64_t>(1, (plan.tiles + kDecodeTiles - 1) / kDecodeTiles);
    floats = threads * (floats + kPackedTiles * plan.tile_floats()) +
             p.batch * p.heads * p.queries * chunks * (plan.Dvp + 2);
  } else {
    floats = threads * floats + wave_heads(plan) * plan.tiles * plan.tile_floats();
  }
  return plan.bytes() + 4 * floats;
}

int64_t fused_workspace_bytes(const Problem& problem, bool backward) {
  const Plan plan(problem, backward);
  return backward ? backward_bytes(plan, useful_threads(problem))
                  : forward_bytes(plan, useful_threads(problem));
}

bool fused_supports(const Problem& problem, std::string* why) {
  const char* reason = nullptr;
  if (problem.query.dtype == DType::kFloat64) reason = "float64 computes on the reference path";
  if (!problem.terms.column_tables.empty())
    reason = "a column table computes on the reference path";
  for (const Rotation& rotation : problem.terms.rotations) {
    if (!rotation.log_decay.empty()) reason = "a decaying rotation computes on the reference path";
  }
  if (reason != nullptr && why != nullptr) *why = reason;
  return reason == nullptr;
}

void fused_forward(const Problem& p, const TensorView& out, const TensorView& lse) {
  const Plan plan(p, false);
  const TileKernels& kernels = tile_kernels();
  const int threads = useful_threads(p);
  Stopper stopper(p.cancel);
  if (p.queries <= kDecodeQueries) {
    decode(plan, kernels, threads, stopper, out, lse);
  } else {
    prefill(plan, kernels, threads, stopper, out, lse);
  }
  stopper.check();
}

void fused_emit(const Problem& p, const TensorView& lse, const TensorView& dense) {
  const Plan plan(p, false);
  const TileKernels& kernels = tile_kernels();
  const int threads = useful_threads(p);
  Stopper stopper(p.cancel);
  std::vector<BlockScratch> scratch;
  for (int worker = 0; worker < threads; ++worker) scratch.emplace_back(plan, kernels);
  for_each_packed_block(plan, threads, stopper, [&](const PackedBlock& at, int worker) {
    BlockScratch& x = scratch[static_cast<size_t>(worker)];
    x.begin(at.batch);
    for (int64_t i = at.first_query; i < at.end_query; ++i) x.add_row(at.head, i);
    x.load_queries();
    for (int row = 0; row < x.block.rows; ++row) {
      x.block.lse[row] =
          lse.given() ? static_cast<float>(lse.at({at.batch, at.head, x.block.index[row]}) * kLog2e)
                      : 0.0f;
    }
    kernels.emit(x.block, at.tiles, 0, plan.tiles, dense, lse.given());
  });
  stopper.check();
}

}  // namespace relpos
