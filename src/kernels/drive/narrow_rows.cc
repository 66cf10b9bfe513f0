#include "kernels/drive/narrow_rows.h"

#include <algorithm>

namespace relpos::bfloat16 {

NarrowRows::NarrowRows(const Plan& plan, int64_t n, int64_t stride, Workspace& memory)
    : plan_(plan), n_(n), stride_(stride) {
  if (plan.unit == nullptr) return;
  rows_ = memory.take<uint16_t>(kRows * stride);
  if (!plan.backward) return;
  transposed_ = memory.take<uint16_t>(round_up(n, kUnitRows) * kRows);
  columns_ = memory.take<float>(n * kTile);
}

void NarrowRows::set(const float* rows, int count) {
  const int64_t padded = round_up(n_, kLanes);
  for (int row = 0; row < count; ++row) {
    uint16_t* to = rows_.get() + row * stride_;
    plan_.kernels.narrow_bfloat16(rows + row * padded, n_, to);
    std::fill(to + n_, to + stride_, uint16_t{0});
  }
  std::fill(rows_.get() + count * stride_, rows_.get() + round_up(count, kUnitRows) * stride_,
            uint16_t{0});
  if (plan_.backward) transpose(rows, count);
}

void NarrowRows::transpose(const float* rows, int count) {
  const int64_t padded = round_up(n_, kLanes), width = round_up(count, kUnitDepth);
  for (int64_t first = 0; first < width; first += kTile) {
    const int64_t columns = std::min(kTile, width - first);
    const int64_t own = std::min<int64_t>(columns, count - first);
    if (own < columns) std::fill_n(columns_.get(), columns_.size(), 0.0f);
    plan_.kernels.transpose(rows + first * padded, padded, own, n_, columns_.get());
    plan_.unit->narrow(n_, columns, columns_.get(), kTile, transposed_.get() + first, width);
  }
  std::fill_n(transposed_.get() + n_ * width, (round_up(n_, kUnitRows) - n_) * width, uint16_t{0});
}

}  // namespace relpos::bfloat16
