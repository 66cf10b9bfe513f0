#include "kernels/drive/forward_block.h"

#include <algorithm>
#include <cmath>

#include "kernels/block/load_rows.h"
#include "kernels/block/softmax_state.h"
#include "kernels/terms/sinks.h"

namespace relpos {

ForwardBlock::ForwardBlock(const Plan& plan, Workspace& memory)
    : QueryBlock(plan, memory),
      m_(memory.take<float>(kRows)),
      l_(memory.take<float>(kRows * kLanes)),
      o_(memory.take<float>(kRows * plan.Dvp)) {
  state = {m_.get(), l_.get(), o_.get()};
}

void ForwardBlock::start(bool with_sinks) {
  load();
  std::fill_n(sinks_, block.rows, -HUGE_VAL);
  for (int row = 0; with_sinks && !plan_.p.terms.sinks.empty() && row < block.rows; ++row) {
    sinks_[row] =
        row_sink(plan_.p, block.batch, block.head[row], block.index[row], block.score_shift[row]);
  }
  // Rows past the block's last get no weight: their reference is infinite.
  std::transform(sinks_, sinks_ + block.rows, m_.get(),
                 [](double sink) { return static_cast<float>(sink); });
  std::fill(m_.get() + block.rows, m_.get() + kRows, HUGE_VALF);
  clear_sums();
}

void ForwardBlock::clear_sums() {
  std::fill_n(l_.get(), padded_rows() * kLanes, 0.0f);
  for (int row = 0; row < block.rows; ++row) {
    // Where the row's shift is large, a sink less its reference is what float32 has rounded off.
    const double sink = sinks_[row], m = static_cast<double>(m_[row]);
    if (sink == -HUGE_VAL) continue;
    l_[row * kLanes] = static_cast<float>(std::exp2(sink - m - rounded_off(sink, m)));
  }
  std::fill_n(o_.get(), padded_rows() * plan_.Dvp, 0.0f);
  terms_.for_each([&]<typename Kind>(Kind& kind) { kind.clear(block); });
}

void ForwardBlock::forward(const KeyTile* tiles, int64_t t, int64_t count) {
  bring(t, count);
  over_tiles(tiles, t, count, state.m, [&](const KeyTile* some, int64_t first, int64_t n) {
    plan_.kernels.forward(block, state, some, first, n);
  });
}

bool ForwardBlock::overflowed() const {
  if (plan_.kernels.finite(o_.get(), block.rows * plan_.Dvp)) return false;
  for (int row = 0; row < block.rows; ++row) {
    if (std::isfinite(sum(row)) && !plan_.kernels.finite(o_.get() + row * plan_.Dvp, plan_.Dvp)) {
      return true;
    }
  }
  return false;
}

void ForwardBlock::start_again() {
  constexpr float kHeadroom = 4.0f;  // all weights of a row sum to 2^-3 at most
  first_m_.assign(m_.get(), m_.get() + block.rows);
  first_l_.assign(l_.get(), l_.get() + block.rows * kLanes);
  first_o_.assign(o_.get(), o_.get() + block.rows * plan_.Dvp);
  for (int row = 0; row < block.rows; ++row) {
    overflowed_[row] = !plan_.kernels.finite(o_.get() + row * plan_.Dvp, plan_.Dvp);
    const double reference = SoftmaxState::of(state.m[row], sum(row)).reference;
    if (std::isfinite(reference)) state.m[row] = static_cast<float>(reference) + kHeadroom;
  }
  clear_sums();
}

void ForwardBlock::finish_again() {
  for (int row = 0; row < block.rows; ++row) {
    if (overflowed_[row]) continue;
    state.m[row] = first_m_[row];
    std::copy_n(first_l_.data() + row * kLanes, kLanes, state.l + row * kLanes);
    std::copy_n(first_o_.data() + row * plan_.Dvp, plan_.Dvp, state.o + row * plan_.Dvp);
  }
}

float ForwardBlock::sum(int row) const noexcept {
  const float* l = state.l + row * kLanes;
  float sums[4];  // four chains: one would wait for itself
  for (int64_t n = 0; n < 4; ++n) sums[n] = (l[n] + l[n + 4]) + (l[n + 8] + l[n + 12]);
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

void finish_rows(const Plan& plan, int64_t b, int64_t h, int64_t i, int rows, const float* m,
                 const float* l, float* o, int64_t stride, const ForwardResults& to) {
  const Problem& p = plan.p;
  float inverse[kRows] = {};
  for (int row = 0; row < rows; ++row) {
    inverse[row] = l[row] == 0.0f ? 0.0f : 1.0f / l[row];
    // Weights of 0 may have met NaN.
    if (l[row] == 0.0f) std::fill_n(o + row * stride, p.value_dim, 0.0f);
  }
  store_scaled(plan.kernels, to.out, b, h, i, rows, p.value_dim, o, stride, inverse, 1);
  for (int row = 0; row < rows && (to.lse.given() || to.softmax.given()); ++row) {
    const SoftmaxState left = SoftmaxState::of(m[row], l[row]);
    if (to.softmax.given()) write_softmax(to.softmax, b, h, i + row, left);
    if (!to.lse.given()) continue;
    const double shift = plan.shifts.active() ? plan.shifts.of(b, h, i + row).total() : 0.0;
    const double sink = p.terms.sinks.empty() ? m[row] : row_sink(p, b, h, i + row, shift);
    to.lse.store(to.lse.offset({b, h, i + row}),
                 left.lse(shift) + from_log2(rounded_off(sink, m[row])));
  }
}

}  // namespace relpos
