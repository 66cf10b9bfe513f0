// What rows send back to the panels of their terms and to the mask, for the SIMD target that includes this.
#if defined(RELPOS_TERM_GRADIENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RELPOS_TERM_GRADIENTS_INL_H_
#undef RELPOS_TERM_GRADIENTS_INL_H_
#else
#define RELPOS_TERM_GRADIENTS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/block/load_rows.h"
#include "kernels/simd/terms-inl.h"

HWY_BEFORE_NAMESPACE();
namespace relpos {
namespace HWY_NAMESPACE {
namespace {

// Adds x[kTile] into the gradient cells of a panel that a row reads by its own coordinate.
HWY_INLINE void add_to_cells(const TileView& view, const Panel& panel, int row, const float* x) {
  float* to = panel.row_gradient(row);
  const int32_t* keys = own_keys(view, panel);
  const int32_t query = own_query(view, panel, row);
  if (is_flat(view, panel)) {
    const F d;
    V sum = hn::Zero(d);
    for (int64_t c = 0; c < kTile; c += kN) sum = hn::Add(sum, hn::Load(d, x + c));
    to[panel.offset(keys[0] - query)] += hn::GetLane(hn::SumOfLanes(d, sum));
    return;
  }
  if (const CoordinateTiles::Places* few = few_places(view, panel)) {
    for (int n = 0; n < few->count; ++n) {
      const F d;
      V sum = hn::Zero(d);
      for (int64_t c = 0; c < kTile; c += kN) {
        sum = hn::Add(sum, hn::IfThenElseZero(lanes_of(few->keys[n], c), hn::Load(d, x + c)));
      }
      to[panel.offset(few->at[n] - query)] += hn::GetLane(hn::SumOfLanes(d, sum));
    }
    return;
  }
  for (int64_t c = 0; c < kTile; ++c) to[panel.offset(keys[c] - query)] += x[c];
}

// Adds the sum of x[kTile], in lanes, to a pad of gradient cells.
HWY_INLINE void add_to_pad(float* to, const float* x) {
  const F d;
  V sums[kTileVectors];
  RELPOS_UNROLLED(v, kTileVectors) sums[v] = hn::Load(d, x + v * kN);
  for (int n = kTileVectors / 2; n > 0; n /= 2) {
    for (int v = 0; v < n; ++v) sums[v] = hn::Add(sums[v], sums[v + n]);
  }
  hn::StoreU(hn::Add(hn::LoadU(d, to), sums[0]), d, to);
}

// Adds x[kTile] of a row, zero outside [first, end), to cells of a panel that follow one another.
HWY_INLINE void add_to_run(const TileView& view, const Panel& panel, int row, const float* x,
                           int64_t first, int64_t end) {
  const F d;
  const int64_t offset = run_offset(view, panel, row);
  float* to = panel.row_gradient(row) + offset;
  // The first and the last cell may hold what a pad was folded into.
  const bool stores = panel.once && offset > kPad && offset < panel.width;
  for (int64_t c = 0; stores && c < kTile; c += kN) {
    hn::StoreU(hn::Load(d, x + c), d, to + c);
  }
  for (int64_t c = first; !stores && c < end; c += kN) {
    hn::StoreU(hn::Add(hn::LoadU(d, to + c), hn::Load(d, x + c)), d, to + c);
  }
}

// The same where they do so in pieces.
HWY_INLINE void add_to_pieces(const TileView& view, const Panel& panel, int row, const float* x) {
  const F d;
  const Pieces& pieces = view.pieces;
  const int64_t query = view.block.position[row] + panel.shift_of(row);
  for (int n = 0, v = 0; v < kTileVectors; ++v) {
    const V all = hn::Load(d, x + v * kN);
    for (; n < pieces.end[v]; ++n) {
      float* to = panel.row_gradient(row) + pieces.offset(panel, n, query);
      const V own = hn::IfThenElseZero(pieces.mask(n), all);
      hn::StoreU(hn::Add(hn::LoadU(d, to), own), d, to);
    }
  }
}

// What a row sends back to a gated panel, whose cells it read times its gate.
class GatedRow {
 public:
  HWY_INLINE GatedRow(const Panel& panel, int row)
      : cells_(panel.row_cells(row)),
        to_(panel.row_gradient(row)),
        sums_(panel.gate_sums + row * kLanes),
        gate_(panel.gate[row]),
        finite_(std::isfinite(gate_)) {}

  // x of the cells from `offset` on: those of a vector.
  HWY_INLINE void add(V x, int64_t offset, V& sum) const {
    const F d;
    sum = hn::MulAdd(x, hn::LoadU(d, cells_ + offset), sum);
    hn::StoreU(hn::MulAdd(hn::Set(d, gate_), x, hn::LoadU(d, to_ + offset)), d, to_ + offset);
  }
  // The same where a gate that is NaN or Inf does not reach a hidden pair.
  HWY_INLINE void add_guarded(V x, int64_t offset, V& sum) const {
    const F d;
    const V own = hn::IfThenZeroElse(hn::Eq(x, hn::Zero(d)), hn::Mul(hn::Set(d, gate_), x));
    sum = hn::MulAdd(x, hn::LoadU(d, cells_ + offset), sum);
    hn::StoreU(hn::Add(own, hn::LoadU(d, to_ + offset)), d, to_ + offset);
  }
  HWY_INLINE void add_run(const float* x, int64_t offset) const {
    const F d;
    V sums[kSums];
    load(sums);
    if (HWY_LIKELY(finite_)) {
      RELPOS_UNROLLED(v, kTileVectors) {
        add(hn::Load(d, x + v * kN), offset + v * kN, sums[v % kSums]);
      }
    } else {
      for (int v = 0; v < kTileVectors; ++v) {
        add_guarded(hn::Load(d, x + v * kN), offset + v * kN, sums[v % kSums]);
      }
    }
    store(sums);
  }
  // All of x[kTile] to a pad, whose cells are one number.
  HWY_INLINE void add_pad(const float* x, int64_t pad) const {
    const F d;
    V all[kTileVectors], sums[kSums];
    RELPOS_UNROLLED(v, kTileVectors) all[v] = hn::Load(d, x + v * kN);
    for (int n = kTileVectors / 2; n > 0; n /= 2) {
      for (int v = 0; v < n; ++v) all[v] = hn::Add(all[v], all[v + n]);
    }
    load(sums);
    add_guarded(all[0], pad, sums[0]);
    store(sums);
  }
  // One number to one cell.
  HWY_INLINE void add_cell(float x, int64_t offset) const {
    if (x == 0.0f) return;
    *sums_ += x * cells_[offset];
    to_[offset] += gate_ * x;
  }
  HWY_INLINE void add_pieces(const TileView& view, const Panel& panel, int row,
                             const float* x) const {
    const F d;
    const Pieces& pieces = view.pieces;
    const int64_t query = view.block.position[row] + panel.shift_of(row);
    V sums[kSums];
    load(sums);
    for (int n = 0, v = 0; v < kTileVectors; ++v) {
      const V all = hn::Load(d, x + v * kN);
      for (; n < pieces.end[v]; ++n) {
        add_guarded(hn::IfThenElseZero(pieces.mask(n), all), pieces.offset(panel, n, query),
                    sums[v % kSums]);
      }
    }
    store(sums);
  }

 private:
  static constexpr int kSums = static_cast<int>(kLanes / kN);  // vectors

  HWY_INLINE void load(V (&sums)[kSums]) const {
    RELPOS_UNROLLED(n, kSums) sums[n] = hn::Load(F(), sums_ + n * kN);
  }
  HWY_INLINE void store(const V (&sums)[kSums]) const {
    RELPOS_UNROLLED(n, kSums) hn::Store(sums[n], F(), sums_ + n * kN);
  }

  const float* cells_;
  float *to_, *sums_;
  const float gate_;
  const bool finite_;
};

HWY_INLINE void add_to_gated(const TileView& view, const Panel& panel, int group, int rows,
                             const float* x) {
  const Side where = side_of(view, panel, group);
  const bool run = is_run(view, panel);
  for (int r = 0; r < rows; ++r, x += kTile) {
    const int row = group + r;
    const GatedRow to(panel, row);
    if (where != Side::kNone) {
      to.add_pad(x, pad_offset(panel, where));
    } else if (run) {
      to.add_run(x, run_offset(view, panel, row));
    } else if (panel.at != nullptr) {
      const int32_t* keys = own_keys(view, panel);
      const int32_t query = own_query(view, panel, row);
      for (int64_t c = 0; c < kTile; ++c) to.add_cell(x[c], panel.offset(keys[c] - query));
    } else {
      to.add_pieces(view, panel, row, x);
    }
  }
}

// Adds x[rows, kTile], zero where hidden and so outside the columns [first, end), into the gradient cells
// that the rows of a group have in the panels.
HWY_INLINE void add_to_gradients(const TileView& view, const std::vector<Panel>& panels, int group,
                                 int rows, const float* x, int64_t first, int64_t end) {
  for (const Panel& panel : panels) {
    if (panel.gradient == nullptr) continue;
    if (panel.gate != nullptr) {
      add_to_gated(view, panel, group, rows, x);
      continue;
    }
    if (const Side where = side_of(view, panel, group); where != Side::kNone) {
      const int64_t pad = pad_offset(panel, where);
      for (int r = 0; r < rows; ++r) {
        add_to_pad(panel.row_gradient(group + r) + pad, x + r * kTile);
      }
    } else if (is_run(view, panel)) {
      for (int r = 0; r < rows; ++r) {
        add_to_run(view, panel, group + r, x + r * kTile, first, end);
      }
    } else if (panel.at != nullptr) {
      for (int r = 0; r < rows; ++r) add_to_cells(view, panel, group + r, x + r * kTile);
    } else {
      for (int r = 0; r < rows; ++r) add_to_pieces(view, panel, group + r, x + r * kTile);
    }
  }
}

HWY_INLINE void add_ramp_gradients(const TileView& view, Block& block, int row, uint64_t visible,
                                   const float* ds) {
  for (Ramp& ramp : block.ramps) {
    for (int64_t c = 0; c < kTile; ++c) {
      if (((visible >> c) & 1U) == 0) continue;
      // Distances less the row's shift: what that leaves out, BiasGradients::finish() adds.
      const int64_t delta = view.distance(row, c);
      (delta < 0 ? ramp.past_sum[row] : ramp.future_sum[row]) +=
          static_cast<double>(ds[c]) * static_cast<double>(delta - block.shift[row]);
    }
  }
}

// Keys of a mask in tile t.
HWY_INLINE int64_t mask_keys(const Block& block, int64_t t) {
  return std::min(kTile, block.problem->keys - t * kTile);
}

// Writes ds[kTile] of a row, 0 where hidden, as the gradient of the mask's row.
HWY_INLINE void store_mask_gradient(const Block& block, const BackwardState& state, int row,
                                    int64_t t, const float* ds) {
  store_row(*state.mask_rows, block.batch, block.head[row], block.index[row], mask_keys(block, t),
            ds, t * kTile);
}

// to[n] += x[n]
HWY_INLINE void add_in_double(const float* x, int64_t n, double* to) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> half;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t c = 0;
  for (; c + lanes <= n; c += lanes) {
    const auto own = hn::PromoteTo(d, hn::LoadU(half, x + c));
    hn::StoreU(hn::Add(hn::LoadU(d, to + c), own), d, to + c);
  }
  for (; c < n; ++c) to[c] += static_cast<double>(x[c]);
}

void add_mask_gradients(const Block& block, const BackwardState& state, int64_t t) {
  const int64_t keys = mask_keys(block, t);
  const TensorView& index = *state.mask_index;
  for (int row = 0; row < block.rows; ++row) {
    const float* ds = state.mask_ds + row * kTile;
    double* to = state.mask_gradient->data() +
                 index.offset({block.batch, block.head[row], block.index[row], t * kTile});
    if (index.strides[3] == 1) {
      add_in_double(ds, keys, to);
    } else {
      for (int64_t c = 0; c < keys; ++c) to[c * index.strides[3]] += static_cast<double>(ds[c]);
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace relpos
HWY_AFTER_NAMESPACE();

#endif
