// Driver of the fused backward pass. Tasks are (b, kv head, chunk of query blocks), cut by shape; each
// owns its accumulators, which are summed in task order: the same bits at any thread count.
#include <algorithm>
#include <cmath>

#include "kernels/backward_sums.h"
#include "kernels/block_setup.h"
#include "kernels/columns.h"
#include "kernels/denormals.h"
#include "kernels/fused.h"
#include "kernels/schedule.h"
#include "kernels/skip.h"
#include "kernels/softmax_state.h"

namespace relpos {
namespace {

constexpr int64_t kWaveTasks = 16;   // accumulators that exist at one time
constexpr int64_t kWantedTasks = 8;  // parallelism that few key heads get from chunks of queries
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

// One worker's block in the backward pass.
class BackwardScratch : public BlockScratch {
 public:
  BackwardScratch(const Plan& plan, const TileKernels& kernels)
      : BlockScratch(plan, kernels),
        plan_(plan),
        kernels_(kernels),
        reader_(plan),
        columns_(plan, kernels),
        skip_(plan),
        dout_(kRows * plan.Dvp),
        out_(plan.Dvp),
        dq_(kRows * plan.Dp),
        tile_dq_(plan.log_decay.empty() ? 0 : kRows * plan.Dp),
        p_(kRows * kTile),
        ds_(kRows * kTile) {
    block.dout = dout_.get();
    block.dq = dq_.get();
    block.p = p_.get();
    block.ds = ds_.get();
    for (const BiasPlan& bias : plan.biases) {
      bias_cells_.emplace_back(bias.cells.size() > 0 ? kGroup * bias.row_size() : 0);
      std::fill_n(bias_cells_.back().get(), bias_cells_.back().size(), 0.0f);
    }
    for (const TablePlan& table : plan.row_tables) {
      row_cells_.emplace_back(kRows * row_stride(plan, table));
      factors_.emplace_back(kRows * table.padded_rank);
    }
    for (const TablePlan& table : plan.value_tables) {
      value_reads_.emplace_back(kRows * cell_stride(plan, table.window));
      value_cells_.emplace_back(kRows * cell_stride(plan, table.window));
    }
  }

  static int64_t floats(const Plan& plan) {
    int64_t sum = kRows * (plan.Dvp + plan.Dp + 2 * kTile) + TileReader::floats(plan) +
                  ColumnScratch::floats(plan) + (plan.log_decay.empty() ? 0 : kRows * plan.Dp);
    for (const BiasPlan& bias : plan.biases) sum += kGroup * bias.row_size();
    for (const TablePlan& t : plan.row_tables) sum += kRows * (row_stride(plan, t) + t.padded_rank);
    for (const TablePlan& t : plan.value_tables) sum += kRows * cell_stride(plan, t.window) * 2;
    return sum;
  }

  // Loads rows [first, end) of head h and runs them over the head's tiles.
  void run(int64_t b, int64_t h, int64_t first, int64_t end, PackedHead* packed, Sums& sums,
           const TensorView& out, const TensorView& softmax, const TensorView& dout,
           const TensorView& dlse, const ProblemGradients& gradients, Stopper& stopper,
           int worker) {
    const Problem& p = plan_.p;
    begin(b);
    for (int64_t i = first; i < end; ++i) add_row(h, i);
    load_queries();
    skip_.start(block);
    load_outputs(out, softmax, dout, dlse);
    block.dk = sums.dk.get();
    block.dv = sums.dv.get();
    block.mask_gradient = gradients.mask;
    block.mask_index = &gradients.mask_index;
    std::fill_n(dq_.get(), padded_rows() * plan_.Dp, 0.0f);
    const int64_t g = h % p.group();
    attach_gradients(g, sums);
    const auto [tile, last] = plan_.tile_range(block);
    reader_.read(
        packed, b * p.kv_heads + h / p.group(), tile, last, stopper, worker,
        [&](const KeyTile* tiles, int64_t t, int64_t count) {
          slide_both(t, count, g, sums);
          const int64_t step = plan_.by_tile() ? 1 : count;
          for (int64_t n = 0; n < count; n += step) {
            if (block.rows_finite && skip_.skips(block, tiles[n], t + n, block.reference)) {
              continue;
            }
            columns_.read(block, tiles[n]);
            start_decay(tiles[n]);
            kernels_.backward(block, tiles + n, t + n, step);
            columns_.add_gradients(block, tiles[n], t + n, g, sums);
            finish_decay();
          }
        });
    finish_biases(g, sums, dlse);
    finish_values(g, sums);
    finish_queries(g, sums, gradients);
  }

 private:
  // slide(), and the gradients with the cells.
  void slide_both(int64_t t, int64_t count, int64_t g, Sums& sums) {
    for (size_t n = 0; n < plan_.row_tables.size(); ++n)
      leave_cells(n, reach(n, t, count), g, sums);
    slide(t, count);
  }

  // Moves the gradients of row table n's cells that `to` does not hold into the table's and the
  // factor's, the others to where `to` has them.
  void leave_cells(size_t n, const Cut& to, int64_t g, Sums& sums) {
    const Cut& from = row_tables[n].cut;
    if (from == to) return;
    const TablePlan& table = plan_.row_tables[n];
    const int64_t stride = row_stride(plan_, table), rank = table.padded_rank;
    float* cells = row_cells_[n].get();
    const int64_t kept = shared(from, to);
    if (from.width > 0) fold_pads(table, block.rows, from.first, from.width, cells, stride);
    if (from.width > kept) {
      const auto [first, width] =
          fold_runs(table, block.rows, from.first, from.width - kept, cells, stride);
      if (sums.rows[n].size() > 0) {
        add_table(table, {first, width}, cells, stride, row_tables[n].factor.get(), rank, g,
                  sums.rows[n]);
      }
      const float* rows = table.head_rows(block.head[0]) + first * rank;
      multiply(kernels_, table.finite, block.rows, rank, width, cells + kPad, stride, 1, rows, rank,
               factors_[n].get(), rank, slides(plan_, table));  // else all leave at once
    }
    move_shared(from, to, block.rows, cells, stride);
    for (int row = 0; row < block.rows; ++row) {
      float* own = cells + row * stride;
      std::fill_n(own, kPad, 0.0f);
      std::fill_n(own + kPad + kept, to.width - kept + kPad, 0.0f);
    }
  }

  // Where a rotation decays, dq of one tile is that of queries scaled for it.
  void start_decay(const KeyTile& tile) {
    if (plan_.log_decay.empty()) return;
    decay_queries(tile);
    block.dq = tile_dq_.get();
    std::fill_n(tile_dq_.get(), tile_dq_.size(), 0.0f);
  }
  void finish_decay() {
    if (plan_.log_decay.empty()) return;
    for (int64_t n = 0; n < block.rows * plan_.Dp; ++n) {
      dq_[n] += tile_dq_[n] * decay_[n % plan_.Dp];
    }
  }

  // dout and delta, both divided by the sum of the row's weights (block.h).
  void load_outputs(const TensorView& out, const TensorView& softmax, const TensorView& dout,
                    const TensorView& dlse) {
    const int64_t Dv = plan_.Dv;
    for (int row = 0; row < padded_rows(); ++row) {
      float* go = dout_.get() + row * plan_.Dvp;
      if (row >= block.rows) {
        std::fill_n(go, plan_.Dvp, 0.0f);
        block.reference[row] = -HUGE_VALF;
        block.delta[row] = 0.0f;
        continue;
      }
      const int64_t h = block.head[row], i = block.index[row], b = block.batch;
      Plan::load_row(dout, b, h, i, Dv, plan_.Dvp, go);
      Plan::load_row(out, b, h, i, Dv, plan_.Dvp, out_.get());
      double parts[4] = {dlse.given() ? -dlse.at({b, h, i})
                                      : 0.0};       // one sum would wait for itself
      for (int64_t d = 0; d < plan_.Dvp; d += 4) {  // both rows are padded with zeros
        for (int64_t n = 0; n < 4; ++n) {
          parts[n] += static_cast<double>(go[d + n]) * static_cast<double>(out_[d + n]);
        }
      }
      const double delta = (parts[0] + parts[1]) + (parts[2] + parts[3]);
      const SoftmaxState state = read_softmax(softmax, b, h, i, block.score_shift[row]);
      const auto inverse = static_cast<float>(1.0 / state.sum);
      kernels_.scale(1, plan_.Dvp, go, 0, &inverse, 0, go, 0);
      block.delta[row] = static_cast<float>(delta / state.sum);
      block.reference[row] = static_cast<float>(state.reference);
    }
    block.rows_finite = kernels_.finite(block.q, block.rows * plan_.Dp) &&
                        kernels_.finite(dout_.get(), block.rows * plan_.Dvp);
  }

  void attach_gradients(int64_t g, Sums& sums) {
    for (size_t n = 0; n < plan_.biases.size(); ++n) {
      if (sums.bias[n].empty() || block.scores[n].cells[0] == nullptr) continue;
      for (int row = 0; row < block.rows; ++row) {
        // Neighbouring rows add to cells one apart: rotating buffers avoid store-forwarding stalls.
        block.scores[n].gradient[row] =
            bias_cells_[n].get() + (row % kGroup) * plan_.biases[n].row_size();
      }
    }
    for (size_t n = 0; n < plan_.row_tables.size(); ++n) {
      const int64_t stride = row_stride(plan_, plan_.row_tables[n]);
      std::fill_n(factors_[n].get(), factors_[n].size(), 0.0f);
      Panel& panel = block.scores[plan_.biases.size() + n];
      for (int row = 0; row < block.rows; ++row)
        panel.gradient[row] = row_cells_[n].get() + row * stride;
    }
    value_cuts_.clear();
    for (size_t n = 0; n < plan_.value_tables.size(); ++n) {
      const TablePlan& table = plan_.value_tables[n];
      const int64_t stride = cell_stride(plan_, table.window);
      value_cuts_.push_back(cut(table.window));
      table_products(kernels_, table, block.head[0], block.rows, block.dout, plan_.Dvp,
                     value_cuts_[n].first, value_cuts_[n].width, value_reads_[n].get() + kPad,
                     stride);
      fill_pads(table, block.rows, value_cuts_[n].width, value_reads_[n].get(), stride);
      std::fill_n(value_cells_[n].get(), block.rows * stride, 0.0f);
      Panel panel;
      panel.lo = table.window.lo + value_cuts_[n].first;
      panel.width = value_cuts_[n].width;
      for (int row = 0; row < block.rows; ++row) {
        panel.cells[row] = value_reads_[n].get() + row * stride;
        if (sums.values[n].size() > 0) panel.gradient[row] = value_cells_[n].get() + row * stride;
      }
      block.values.push_back(panel);
    }
    for (int row = 0; row < block.rows; ++row) {
      block.key_bias_gradient[row] =
          sums.key_bias.size() > 0 ? sums.key_bias.get() + g * plan_.tiles * kTile : nullptr;
    }
  }

  // Moves the block's float cells into the task's doubles.
  void finish_biases(int64_t g, Sums& sums, const TensorView& dlse) {
    for (size_t n = 0; n < plan_.biases.size(); ++n) {
      const BiasPlan& bias = plan_.biases[n];
      const int64_t size = bias.row_size();
      if (!sums.bias[n].empty() && block.scores[n].cells[0] != nullptr) {
        const bool whole = bias.sloped && block.shifted;
        const Cut touched = whole ? Cut{0, bias.window.width} : cut(bias.window);
        double* to = sums.bias[n].data() + g * size;
        for (int64_t c = touched.first; c < touched.first + touched.width + 2 * kPad; ++c) {
          for (int64_t r = 0; r < kGroup; ++r) {
            float& cell = bias_cells_[n][r * size + c];
            to[c] += static_cast<double>(cell);
            cell = 0.0f;
          }
        }
      }
      if (sums.ramp[n].empty() || !block.shifted || !dlse.given()) continue;
      // What the shifts left out: a row's gradients of scores sum to that of its lse.
      for (int row = 0; row < block.rows; ++row) {
        const int64_t shift = block.shift[row];
        if (shift == 0 || block.reference[row] == -HUGE_VALF) continue;
        sums.ramp[n][static_cast<size_t>(2 * g + (shift < 0 ? 0 : 1))] +=
            static_cast<double>(shift) * dlse.at({block.batch, block.head[row], block.index[row]});
      }
    }
    for (const Ramp& ramp : block.ramps) {
      if (sums.ramp[ramp.bias].empty()) continue;
      double* to = sums.ramp[ramp.bias].data() + 2 * g;
      for (int row = 0; row < block.rows; ++row) {
        to[0] += ramp.past_sum[row];
        to[1] += ramp.future_sum[row];
      }
    }
  }

  // table += cells^T rows, for the cells of one cut.
  void add_table(const TablePlan& table, const Cut& at, const float* cells, int64_t stride,
                 const float* rows, int64_t ld, int64_t g, const Buffer<float>& sum) {
    float* to =
        sum.get() + ((table.heads == 1 ? 0 : g) * table.entries() + at.first) * table.padded_rank;
    multiply(kernels_, kernels_.finite(rows, block.rows * ld), at.width, table.padded_rank,
             block.rows, cells + kPad, 1, stride, rows, ld, to, table.padded_rank, true);
  }

  void finish_values(int64_t g, Sums& sums) {
    for (size_t n = 0; n < plan_.value_tables.size(); ++n) {
      if (sums.values[n].size() == 0) continue;
      const TablePlan& table = plan_.value_tables[n];
      const int64_t stride = cell_stride(plan_, table.window);
      fold_pads(table, block.rows, value_cuts_[n].first, value_cuts_[n].width,
                value_cells_[n].get(), stride);
      add_table(table, value_cuts_[n], value_cells_[n].get(), stride, block.dout, plan_.Dvp, g,
                sums.values[n]);
    }
  }

  void finish_queries(int64_t g, Sums& sums, const ProblemGradients& gradients) {
    const Problem& p = plan_.p;
    const auto scale = static_cast<float>(p.scale);
    for (int row = 0; row < block.rows; ++row) {
      float* dq = dq_.get() + row * plan_.Dp;
      for (int64_t d = 0; d < plan_.D; ++d) dq[d] *= scale;
      plan_.unrotate_query(block.batch, block.index[row], dq);
      for (int64_t d = 0; !sums.query_added.empty() && d < plan_.D; ++d) {
        sums.query_added[static_cast<size_t>(g * plan_.D + d)] += static_cast<double>(dq[d]);
      }
    }
    for (size_t n = 0; n < plan_.row_tables.size(); ++n) {
      const TablePlan& table = plan_.row_tables[n];
      const RowTable& term = p.terms.row_tables[n];
      leave_cells(n, {}, g, sums);
      for (int row = 0; row < block.rows; ++row) {
        const float* da = factors_[n].get() + row * table.padded_rank;
        for (int64_t d = 0; d < table.rank; ++d) {
          const double value = table.scale * static_cast<double>(da[d]);
          if (!sums.added[n].empty()) {
            sums.added[n][static_cast<size_t>(g * table.rank + d)] += value * term.added.multiplier;
          }
          if (!term.factor.view.given()) {
            dq_[row * plan_.Dp + d] += static_cast<float>(value);
          } else if (!gradients.terms->row_tables[n].factor.empty()) {
            const int64_t at =
                ((block.batch * p.heads + block.head[row]) * p.queries + block.index[row]) *
                    table.rank +
                d;
            gradients.terms->row_tables[n].factor[static_cast<size_t>(at)] =
                value * term.factor.multiplier;
          }
        }
      }
    }
    if (!gradients.query.given()) return;
    for (int row = 0; row < block.rows; ++row) {
      Plan::store_row(gradients.query, block.batch, block.head[row], block.index[row], plan_.D,
                      dq_.get() + row * plan_.Dp);
    }
  }

  const Plan& plan_;
  const TileKernels& kernels_;
  TileReader reader_;
  ColumnScratch columns_;
  TileSkip skip_;
  Buffer<float> dout_, out_, dq_, tile_dq_, p_, ds_;
  std::vector<Buffer<float>> bias_cells_, row_cells_, factors_, value_reads_, value_cells_;
  std::vector<Cut> value_cuts_;
};

// Key heads of one wave.
int64_t backward_wave(const Plan& plan) {
  const int64_t chunks = chunk_count(plan.p), pairs = plan.p.batch * plan.p.kv_heads;
  return std::clamp<int64_t>(kWaveTasks / chunks, 1, std::max<int64_t>(1, pairs));
}

}  // namespace

int64_t backward_bytes(const Plan& plan, int threads) {
  const TermGradients wants = TermGradients::zeros(plan.p.terms);
  const int64_t wave = backward_wave(plan);
  const int64_t scratch = BlockScratch::floats(plan) + BackwardScratch::floats(plan);
  const int64_t anew = reads_in_place(plan.p) ? plan.p.batch * plan.p.heads * plan.p.queries *
                                                    (item_size(plan.p.query.dtype) * plan.Dv + 8)
                                              : 0;
  return anew + plan.bytes() + wave * chunk_count(plan.p) * Sums(plan, wants).bytes() +
         4 * (threads * scratch + PackedHeads::floats(plan, wave));
}

namespace {

void tiled_backward(const Problem& p, const TensorView& out, const TensorView& softmax,
                    const TensorView& dout, const TensorView& dlse,
                    const ProblemGradients& gradients) {
  const Plan plan(p, true);
  const TileKernels& kernels = tile_kernels();
  // A mask shared by heads or batch rows sums over tasks: one thread keeps the order.
  const int threads = gradients.mask != nullptr ? 1 : useful_threads(p);
  Stopper stopper(p.cancel);
  const int64_t pairs = p.batch * p.kv_heads, chunks = chunk_count(p);
  const int64_t blocks = (p.queries + kRows - 1) / kRows;
  if (pairs == 0) return;
  const int64_t wave = backward_wave(plan);
  std::vector<Sums> sums;
  for (int64_t n = 0; n < wave * chunks; ++n) sums.emplace_back(plan, *gradients.terms);
  std::vector<BackwardScratch> scratch;
  for (int worker = 0; worker < threads; ++worker) scratch.emplace_back(plan, kernels);
  PackedHeads packed(plan, wave);
  for (int64_t first = 0; first < pairs; first += wave) {
    const int64_t count = std::min(wave, pairs - first);
    for (int64_t slot = 0; slot < count; ++slot) packed.start(slot, first + slot);
    parallel_for(count * chunks, threads, stopper, [&](int64_t task, int worker) {
      Sums& own = sums[static_cast<size_t>(task)];
      own.clear();
      const int64_t slot = task / chunks, chunk = task % chunks, pair = first + slot;
      const int64_t b = pair / p.kv_heads, kv_head = pair % p.kv_heads;
      const FloatMode mode(float_control(p, b, kv_head, dout));
      for (int64_t g = 0; g < p.group(); ++g) {
        for (int64_t n = chunk; n < blocks && !stopper.stopped(worker); n += chunks) {
          scratch[static_cast<size_t>(worker)].run(
              b, kv_head * p.group() + g, n * kRows, std::min(p.queries, (n + 1) * kRows),
              packed.head(slot), own, out, softmax, dout, dlse, gradients, stopper, worker);
        }
      }
    });
    stopper.check();
    reduce_keys(plan, sums, first, count, chunks, threads, stopper, gradients);
    reduce_terms(plan, sums, first * chunks, count * chunks, chunks, threads, stopper,
                 *gradients.terms);
    stopper.check();
  }
}

}  // namespace

void fused_backward(const Problem& p, const TensorView& out, const TensorView& softmax,
                    const TensorView& dout, const TensorView& dlse,
                    const ProblemGradients& gradients) {
  if (reads_in_place(p)) {
    // Rows read in place sum their products in another order than tiles do, and eps |score| apart a
    // sum does not fit these weights: it is found anew.
    const Tensor again(p.query.dtype, {p.batch, p.heads, p.queries, p.value_dim});
    const Tensor sums(DType::kFloat32, {p.batch, p.heads, p.queries, 2});
    fused_forward(p, {again.view(), {}, sums.view()}, true);
    tiled_backward(p, out, sums.view(), dout, dlse, gradients);
  } else {
    tiled_backward(p, out, softmax, dout, dlse, gradients);
  }
}

}  // namespace relpos
