#include "kernels/drive/key_chunks.h"

#include <algorithm>
#include <cmath>

#include "kernels/block/softmax_state.h"

namespace relpos {

KeyChunks::KeyChunks(const Plan& plan, int64_t tiles, int64_t groups, int64_t rows,
                     Workspace& memory)
    : plan_(plan),
      tiles_(tiles),
      count_(std::max<int64_t>(1, (plan.tiles + tiles - 1) / tiles)),
      rows_(rows),
      blocks_((rows + kRows - 1) / kRows),
      memory_(memory.take<float>(count_ == 1 ? 0 : groups * count_ * rows * (plan.Dvp + 2))),
      done_(count_ == 1 ? 0 : groups * blocks_) {}

int64_t KeyChunks::tiles_for(const Plan& plan, int64_t blocks, int64_t wanted, int64_t least) {
  return std::max(least, plan.tiles * blocks / wanted);
}

void KeyChunks::take(ForwardBlock& x, int64_t group, int64_t block, int64_t chunk,
                     const ForwardResults& to) {
  float sums[kRows];
  for (int row = 0; row < x.block.rows; ++row) sums[row] = x.sum(row);
  if (count_ == 1) {
    for_each_head(x.block, [&](int64_t head, int row, int count) {
      finish_rows(plan_, x.block.batch, head, x.block.index[row], count, x.state.m + row,
                  sums + row, x.state.o + row * plan_.Dvp, plan_.Dvp, to);
    });
    return;
  }
  for (int row = 0; row < x.block.rows; ++row) {
    float* part = at(group, chunk, block * kRows + row);
    std::copy_n(x.state.o + row * plan_.Dvp, plan_.Dvp, part);
    part[plan_.Dvp] = x.state.m[row];
    part[plan_.Dvp + 1] = sums[row];
  }
}

void KeyChunks::merge(const ForwardBlock& x, int64_t group, int64_t block,
                      const ForwardResults& to) {
  if (count_ == 1) return;
  std::atomic<int64_t>& done = done_[group * blocks_ + block];
  if (done.fetch_add(1, std::memory_order_acq_rel) + 1 < count_) return;
  for (int row = 0; row < x.block.rows; ++row) {
    merge_row(group, block * kRows + row);
    float* o = at(group, 0, block * kRows + row);
    finish_rows(plan_, x.block.batch, x.block.head[row], x.block.index[row], 1, o + plan_.Dvp,
                o + plan_.Dvp + 1, o, plan_.Dvp, to);
  }
}

// Into chunk 0. The common reference leaves every chunk a sum below 1, so that no sum of outputs
// overflows.
void KeyChunks::merge_row(int64_t group, int64_t row) const {
  float* o = at(group, 0, row);
  float m = -HUGE_VALF, l = 0.0f;
  for (int64_t chunk = 0; chunk < count_; ++chunk) {
    const float* part = at(group, chunk, row) + plan_.Dvp;
    m = std::max(m, static_cast<float>(SoftmaxState::of(part[0], part[1]).reference) + 1.0f);
  }
  for (int64_t chunk = 0; chunk < count_; ++chunk) {
    const float* part = at(group, chunk, row);
    const double reference = part[plan_.Dvp];
    if (chunk == 0 && reference == -HUGE_VAL) std::fill_n(o, plan_.Dvp, 0.0f);
    if (reference == -HUGE_VAL) continue;  // it has seen nothing
    // In double: sums of up to 2^60 and more may meet a factor below the least float.
    const double factor = std::exp2(reference - static_cast<double>(m));
    const auto scaled = [&](float x) {
      return static_cast<float>(static_cast<double>(x) * factor);
    };
    l += scaled(part[plan_.Dvp + 1]);
    if (chunk == 0) {
      for (int64_t d = 0; d < plan_.Dvp; ++d) o[d] = scaled(o[d]);
    } else {
      for (int64_t d = 0; d < plan_.Dvp; ++d) o[d] += scaled(part[d]);
    }
  }
  o[plan_.Dvp] = m;
  o[plan_.Dvp + 1] = l;
}

}  // namespace relpos
