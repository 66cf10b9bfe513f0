#include "kernels/forward_block.h"

#include <algorithm>
#include <cmath>

#include "kernels/softmax_state.h"

namespace relpos {

ForwardScratch::ForwardScratch(const Plan& plan, const TileKernels& kernels)
    : BlockScratch(plan, kernels),
      plan_(plan),
      kernels_(kernels),
      columns_(plan, kernels),
      skip_(plan),
      m_(kRows),
      l_(kRows * kLanes),
      o_(kRows * plan.Dvp),
      row_(std::max(plan.Dp, plan.Dvp)) {
  block.m = m_.get();
  block.l = l_.get();
  block.o = o_.get();
  for (const TablePlan& table : plan.value_tables) {
    weights_.emplace_back(kRows * cell_stride(plan, table.window));
  }
}

int64_t ForwardScratch::floats(const Plan& plan) {
  int64_t floats = BlockScratch::floats(plan) + ColumnScratch::floats(plan) +
                   kRows * (1 + kLanes + plan.Dvp) + plan.Dp + plan.Dvp;
  for (const TablePlan& table : plan.value_tables) {
    floats += kRows * cell_stride(plan, table.window);
  }
  return floats;
}

void ForwardScratch::start() {
  load_queries();
  skip_.start(block);
  // Rows past the block's last get no weight: their reference is infinite.
  std::fill_n(m_.get(), block.rows, -HUGE_VALF);
  std::fill(m_.get() + block.rows, m_.get() + kRows, HUGE_VALF);
  cuts_.clear();
  for (size_t n = 0; n < plan_.value_tables.size(); ++n) {
    const TablePlan& table = plan_.value_tables[n];
    const int64_t stride = cell_stride(plan_, table.window);
    cuts_.push_back(cut(table.window));
    Panel panel;
    panel.lo = table.window.lo + cuts_[n].first;
    panel.width = cuts_[n].width;
    for (int row = 0; row < block.rows; ++row)
      panel.gradient[row] = weights_[n].get() + row * stride;
    block.values.push_back(panel);
  }
  clear_sums();
}

void ForwardScratch::clear_sums() {
  std::fill_n(l_.get(), padded_rows() * kLanes, 0.0f);
  std::fill_n(o_.get(), padded_rows() * plan_.Dvp, 0.0f);
  for (size_t n = 0; n < plan_.value_tables.size(); ++n) {
    const int64_t stride = cell_stride(plan_, plan_.value_tables[n].window);
    std::fill_n(weights_[n].get(), block.rows * stride, 0.0f);
  }
}

bool ForwardScratch::overflowed() const {
  if (kernels_.finite(o_.get(), block.rows * plan_.Dvp)) return false;
  for (int row = 0; row < block.rows; ++row) {
    if (std::isfinite(sum(row)) && !kernels_.finite(o_.get() + row * plan_.Dvp, plan_.Dvp)) {
      return true;
    }
  }
  return false;
}

void ForwardScratch::start_again() {
  constexpr float kHeadroom = 4.0f;  // all weights of a row sum to 2^-3 at most
  first_m_.assign(m_.get(), m_.get() + block.rows);
  first_l_.assign(l_.get(), l_.get() + block.rows * kLanes);
  first_o_.assign(o_.get(), o_.get() + block.rows * plan_.Dvp);
  for (int row = 0; row < block.rows; ++row) {
    overflowed_[row] = !kernels_.finite(o_.get() + row * plan_.Dvp, plan_.Dvp);
    const SoftmaxState state = SoftmaxState::of(block.m[row], sum(row));
    if (std::isfinite(state.reference)) {
      block.m[row] = static_cast<float>(state.reference) + kHeadroom;
    }
  }
  clear_sums();
}

void ForwardScratch::finish_again() {
  for (int row = 0; row < block.rows; ++row) {
    if (overflowed_[row]) continue;
    block.m[row] = first_m_[static_cast<size_t>(row)];
    std::copy_n(first_l_.data() + row * kLanes, kLanes, block.l + row * kLanes);
    std::copy_n(first_o_.data() + row * plan_.Dvp, plan_.Dvp, block.o + row * plan_.Dvp);
  }
}

void ForwardScratch::forward(const KeyTile* tiles, int64_t t, int64_t count) {
  const int64_t step = plan_.by_tile() ? 1 : kTilesAtATime;
  for (int64_t n = 0; n < count; n += step) {
    if (n % kTilesAtATime == 0) slide(t + n, std::min(kTilesAtATime, count - n));
    if (skip_.skips(block, tiles[n], t + n, block.m)) continue;
    columns_.read(block, tiles[n]);
    decay_queries(tiles[n]);
    kernels_.forward(block, tiles + n, t + n, std::min(step, count - n));
  }
}

void ForwardScratch::add_value_tables() {
  for (size_t n = 0; n < plan_.value_tables.size(); ++n) {
    const TablePlan& table = plan_.value_tables[n];
    const int64_t stride = cell_stride(plan_, table.window), width = cuts_[n].width;
    fold_pads(table, block.rows, cuts_[n].first, width, weights_[n].get(), stride);
    for_each_head(block, [&](int64_t head, int first, int rows) {
      const float* weights = weights_[n].get() + first * stride + kPad;
      const float* values = table.head_rows(head) + cuts_[n].first * table.padded_rank;
      float* o = block.o + first * plan_.Dvp;
      multiply(kernels_, table.finite, rows, plan_.Dvp, width, weights, stride, 1, values,
               table.padded_rank, o, plan_.Dvp, true);
    });
  }
}

float ForwardScratch::sum(int row) const noexcept {
  const float* l = block.l + row * kLanes;
  float sums[4];  // four chains: one would wait for itself
  for (int64_t n = 0; n < 4; ++n) sums[n] = (l[n] + l[n + 4]) + (l[n + 8] + l[n + 12]);
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

void finish_rows(const Plan& plan, int64_t b, int64_t h, int64_t i, int rows, const float* m,
                 const float* l, float* o, int64_t stride, const ForwardResults& to) {
  const Problem& p = plan.p;
  const TensorView& out = to.out;
  float inverse[kRows];
  for (int row = 0; row < rows; ++row) {
    inverse[row] = l[row] == 0.0f ? 0.0f : 1.0f / l[row];
    // Weights of 0 may have met NaN.
    if (l[row] == 0.0f) std::fill_n(o + row * stride, p.value_dim, 0.0f);
  }
  const bool in_place = out.dtype == DType::kFloat32 && out.strides[3] == 1;
  float* rows_out = in_place ? static_cast<float*>(out.data) + out.offset({b, h, i, 0}) : o;
  tile_kernels().scale(rows, p.value_dim, o, stride, inverse, 1, rows_out,
                       in_place ? out.strides[2] : stride);
  for (int row = 0; row < rows && !in_place; ++row) {
    Plan::store_row(out, b, h, i + row, p.value_dim, o + row * stride);
  }
  for (int row = 0; row < rows && (to.lse.given() || to.softmax.given()); ++row) {
    const SoftmaxState state = SoftmaxState::of(m[row], l[row]);
    if (to.softmax.given()) write_softmax(to.softmax, b, h, i + row, state);
    if (!to.lse.given()) continue;
    const double shift = plan.shifts.active() ? plan.shifts.of(b, h, i + row).total() : 0.0;
    to.lse.store(to.lse.offset({b, h, i + row}), state.lse(shift));
  }
}

}  // namespace relpos
