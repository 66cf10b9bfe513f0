// What is added to a register tile of scores, for the SIMD target that includes this; what rows send back
// is in term-gradients-inl.h.
#if defined(RELPOS_TERMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RELPOS_TERMS_INL_H_
#undef RELPOS_TERMS_INL_H_
#else
#define RELPOS_TERMS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

#include "kernels/block/block.h"
#include "kernels/block/log2.h"
#include "kernels/simd/pairs-inl.h"
#include "kernels/simd/tile-view-inl.h"

HWY_BEFORE_NAMESPACE();
namespace relpos {
namespace HWY_NAMESPACE {

// In masks.cc, for the same target. rows [kGroup]: what the rows of a group read of a floating mask in tile t
// as floats, in place or in own [kGroup, kTile], -inf past the last key. Times log2(e) they are to_log2().
void read_mask(const Block& block, int group, int64_t t, bool beyond, float* own,
               const float** rows);

namespace {

// sums[kGroup, kTile] += the cells of a panel that the rows of a group read in a tile that is no run.
HWY_INLINE void add_pieces(const TileView& view, const Panel& panel, int group, float* sums) {
  const F d;
  const Pieces& pieces = view.pieces;
  const float* cells[kGroup];
  float gates[kGroup];
  int64_t query[kGroup];
  for (int r = 0; r < kGroup; ++r) {
    const int row = std::min(group + r, view.block.rows - 1);
    cells[r] = panel.row_cells(row);
    gates[r] = panel.gate_of(row);
    query[r] = view.block.position[row] + panel.shift_of(row);
  }
  for (int n = 0, v = 0; v < kTileVectors; ++v) {
    V sum[kGroup];
    RELPOS_UNROLLED(r, kGroup) sum[r] = hn::Load(d, sums + r * kTile + v * kN);
    for (; n < pieces.end[v]; ++n) {
      const auto own = pieces.mask(n);
      RELPOS_UNROLLED(r, kGroup) {
        const float* from = cells[r] + pieces.offset(panel, n, query[r]);
        const V gated = hn::Mul(hn::Set(d, gates[r]), hn::MaskedLoad(own, d, from));
        sum[r] = hn::Add(sum[r], hn::IfThenElseZero(own, gated));
      }
    }
    RELPOS_UNROLLED(r, kGroup) hn::Store(sum[r], d, sums + r * kTile + v * kN);
  }
}

// sums[kTile] += the cells of a panel that a row reads by its own coordinate, where they are neither a run
// nor flat.
HWY_INLINE void add_cells(const TileView& view, const Panel& panel, int row, float* sums) {
  const F d;
  const float* cells = panel.row_cells(row);
  const int32_t query = own_query(view, panel, row);
  if (const CoordinateTiles::Places* few = few_places(view, panel)) {
    float found[CoordinateTiles::Places::kMost];
    for (int n = 0; n < few->count; ++n) {
      found[n] = panel.gate_of(row) * cells[panel.offset(few->at[n] - query)];
    }
    for (int64_t c = 0; c < kTile; c += kN) {
      V cell = hn::Set(d, found[0]);
      for (int n = 1; n < few->count; ++n) {
        cell = hn::IfThenElse(lanes_of(few->keys[n], c), hn::Set(d, found[n]), cell);
      }
      hn::Store(hn::Add(hn::Load(d, sums + c), cell), d, sums + c);
    }
    return;
  }
  const int32_t* keys = own_keys(view, panel);
  const hn::RebindToSigned<F> di;
  const auto first = hn::Set(di, query + static_cast<int32_t>(panel.lo - kPad));
  const auto last = hn::Set(di, static_cast<int32_t>(panel.width + kPad));
  const V gate = hn::Set(d, panel.gate_of(row));
  for (int64_t c = 0; c < kTile; c += kN) {
    const auto at = hn::Sub(hn::LoadU(di, keys + c), first);
    const auto cell = hn::Min(hn::Max(at, hn::Zero(di)), last);
    const V gated = hn::Mul(gate, hn::GatherIndex(d, cells, cell));
    hn::Store(hn::Add(hn::Load(d, sums + c), gated), d, sums + c);
  }
}

// slope * delta, the slope split into two floats.
HWY_INLINE V sloped(V high, V low, V delta) {
#if HWY_TARGET == HWY_SCALAR  // no fused product: rounding twice would show
  return hn::Set(F(), static_cast<float>((static_cast<double>(high.raw) + low.raw) *
                                         static_cast<double>(delta.raw)));
#else
  return hn::MulAdd(high, delta, hn::Mul(low, delta));
#endif
}

// sums[kTile] += a ramp. In lanes where distances less the row's shift are floats.
HWY_INLINE void add_ramp(const TileView& view, const Ramp& ramp, int row, float* sums) {
  constexpr int64_t kExact = int64_t{1} << 24;  // integers that float32 holds
  const int64_t shift = view.block.shift[row], delta = view.distance(row, 0) - shift;
  const bool from_shift = shift != 0 || ramp.shift[row] == 0.0;
  if (!view.tile.run || !from_shift || delta <= -kExact || delta >= kExact - kTile) {
    for (int64_t c = 0; c < kTile; ++c) {
      sums[c] += static_cast<float>(ramp(row, view.distance(row, c)));
    }
    return;
  }
  const F d;
  const auto high = [&](double slope) HWY_ATTR { return hn::Set(d, static_cast<float>(slope)); };
  const auto low = [&](double slope) HWY_ATTR {
    const auto whole = static_cast<float>(slope);
    return hn::Set(d, std::isfinite(whole) ? static_cast<float>(slope - whole) : 0.0f);
  };
  const V high_past = high(ramp.past[row]), high_future = high(ramp.future[row]);
  const V low_past = low(ramp.past[row]), low_future = low(ramp.future[row]);
  for (int64_t c = 0; c < kTile; c += kN) {
    const V at = hn::Add(hn::Set(d, static_cast<float>(delta)), hn::Iota(d, static_cast<float>(c)));
    const auto past = hn::Lt(at, hn::Zero(d));
    const V value = sloped(hn::IfThenElse(past, high_past, high_future),
                           hn::IfThenElse(past, low_past, low_future), at);
    hn::Store(hn::Add(hn::Load(d, sums + c), value), d, sums + c);
  }
}

// Pointers to the kTile floats that each row of a group adds, one list a term.
class Additions {
 public:
  // `panels` of the block; `scores`: with the terms that only scores have.
  HWY_INLINE Additions(const TileView& view, const std::vector<Panel>& panels, int group,
                       bool scores) {
    const Block& block = view.block;
    count_ = 0;
    if (scores && view.far != 0) flat_ = view.flat + group;
    if (scores && view.only_flat) return;  // most tiles of a clipped bias: 2 % of a pass on AMX
    bool summed = scores && !block.ramps.empty();
    if (scores && !block.pairs.empty()) {
      if (reads_pairs_in_place(block, view.t)) {
        paired_ = &block;
        tile_ = view.t;
        group_ = group;
      } else {
        summed = true;
      }
    }
    for (size_t n = 0; n < panels.size(); ++n) {
      const Panel& panel = panels[n];
      if (panel.cells == nullptr) continue;
      if (scores && n < TileView::kMostFar && ((view.far >> n) & 1U) != 0) continue;
      if (const Side where = side_of(view, panel, group); where != Side::kNone) {
        add_far(block, panel, group, pad_offset(panel, where));
        continue;
      }
      const bool flat = is_flat(view, panel);
      if (!flat && (n >= kMost || !is_run(view, panel))) {
        summed = true;
        continue;
      }
      first_cells(view, panel, group, at_[count_]);
      if (flat) {
        add_flat(panel, group, at_[count_]);
      } else {
        if (panel.gate != nullptr) gates_[count_] = panel.gate + group;
        ++count_;
      }
    }
    const bool biased = scores && block.key_bias[group] != nullptr;
    if (scores && block.extra != nullptr) {
      for (int r = 0; r < kGroup; ++r) {
        at_[count_][r] = block.extra + (group + r) * block.extra_stride;
      }
      ++count_;
    }
    if (summed) {
      sum_by_row(view, panels, group, scores, biased);
    } else if (biased) {
      share_key_bias(view, group);
    }
  }

  // Whether a block's rows add nothing to the scores of any tile.
  static HWY_INLINE bool nothing(const Block& block) {
    return block.scores.empty() && block.ramps.empty() && block.pairs.empty() &&
           block.key_bias[0] == nullptr && block.extra == nullptr;
  }
  // Whether all that they add are numbers of a row, or a row of numbers.
  static HWY_INLINE bool plain(const Block& block) {
    const auto gated = [](const Panel& panel) { return panel.gate != nullptr; };
    return block.pairs.empty() && std::none_of(block.scores.begin(), block.scores.end(), gated);
  }

  // add_to() of what is plain().
  template <int R, int kVectors>
  HWY_INLINE void add_plain(V (&sum)[R][kVectors], int64_t c, int row) const {
    add_numbers(sum, row);
    for (int n = 0; n < count_; ++n) add_row(n, sum, c, row);
  }

  // Adds columns [c, c + kVectors * kN) of the group's rows from `row` on.
  template <int R, int kVectors>
  HWY_INLINE void add_to(V (&sum)[R][kVectors], int64_t c, int row = 0) const {
    if (paired_ != nullptr) add_pairs(*paired_, tile_, sum, c, group_ + row);
    add_numbers(sum, row);
    for (int n = 0; n < count_; ++n) {
      if (gates_[n] == nullptr) {
        add_row(n, sum, c, row);
        continue;
      }
      RELPOS_UNROLLED(r, R) {
        const float* from = at_[n][row + r] + c;
        const V gate = hn::Set(F(), gates_[n][row + r]);
        RELPOS_UNROLLED(v, kVectors) {
          sum[r][v] = hn::MulAdd(gate, hn::LoadU(F(), from + v * kN), sum[r][v]);
        }
      }
    }
  }

 private:
  template <int R, int kVectors>
  HWY_INLINE void add_numbers(V (&sum)[R][kVectors], int row) const {
    if (flat_ == nullptr) return;
    RELPOS_UNROLLED(r, R) {
      const V cell = hn::Set(F(), flat_[row + r]);
      RELPOS_UNROLLED(v, kVectors) sum[r][v] = hn::Add(sum[r][v], cell);
    }
  }
  template <int R, int kVectors>
  HWY_INLINE void add_row(int n, V (&sum)[R][kVectors], int64_t c, int row) const {
    RELPOS_UNROLLED(r, R) {
      const float* from = at_[n][row + r] + c;
      RELPOS_UNROLLED(v, kVectors) sum[r][v] = hn::Add(sum[r][v], hn::LoadU(F(), from + v * kN));
    }
  }
  // What is not read where it lies: each row has its sums of that.
  HWY_INLINE void sum_by_row(const TileView& view, const std::vector<Panel>& panels, int group,
                             bool scores, bool biased) {
    const Block& block = view.block;
    const int rows = std::min(kGroup, block.rows - group);
    for (int r = 0; r < kGroup; ++r) {
      float* sums = sums_ + r * kTile;
      at_[count_][r] = sums;
      if (biased && r < rows) {
        load_key_bias(view, group + r, sums);
      } else {
        clear(sums, kTile);
      }
      for (const Ramp& ramp : block.ramps) {
        if (scores && r < rows) add_ramp(view, ramp, group + r, sums);
      }
      for (const PairPanel& panel : block.pairs) {
        if (scores && r < rows && paired_ == nullptr) {
          add_pair_cells(block, panel, group + r, view.t, sums);
        }
      }
    }
    ++count_;
    for (size_t n = 0; n < panels.size(); ++n) {
      const Panel& panel = panels[n];
      if (panel.cells == nullptr || is_flat(view, panel)) continue;
      if (side_of(view, panel, group) != Side::kNone) continue;
      const bool run = is_run(view, panel);
      if (!run && panel.at == nullptr) {
        add_pieces(view, panel, group, sums_);
        continue;
      }
      for (int r = 0; r < rows && (!run || n >= kMost); ++r) {
        if (run) {
          add(sums_ + r * kTile, panel.row_cells(group + r) + run_offset(view, panel, group + r),
              panel.gate_of(group + r));
        } else {
          add_cells(view, panel, group + r, sums_ + r * kTile);
        }
      }
    }
  }
  static constexpr size_t kMost = 5;
  HWY_INLINE void add_far(const Block& block, const Panel& panel, int group, int64_t pad) {
    const float* cells[kGroup];
    for (int r = 0; r < kGroup; ++r) {
      cells[r] = panel.row_cells(std::min(group + r, block.rows - 1)) + pad;
    }
    add_flat(panel, group, cells);
  }
  HWY_INLINE void add_flat(const Panel& panel, int group, const float* const (&cells)[kGroup]) {
    for (int r = 0; r < kGroup; ++r) {
      const float cell = panel.gate_of(group + r) * *cells[r];
      own_flat_[r] = flat_ != nullptr ? flat_[r] + cell : cell;
    }
    flat_ = own_flat_;
  }
  // Key biases of the tile, less what the row's scores are less by.
  static HWY_INLINE void load_key_bias(const TileView& view, int row, float* to) {
    const double* from = view.block.key_bias[row] + view.t * kTile;
    const double shift = view.block.key_shift[row];
    for (int64_t c = 0; c < kTile; ++c) to[c] = static_cast<float>(from[c] - shift);
  }
  // Key biases alone: rows of one head and one shift share them.
  HWY_INLINE void share_key_bias(const TileView& view, int group) {
    const Block& block = view.block;
    for (int r = 0; r < kGroup; ++r) {
      const int row = std::min(group + r, block.rows - 1), last = std::max(row - 1, group);
      const bool same = r > 0 && block.key_bias[row] == block.key_bias[last] &&
                        block.key_shift[row] == block.key_shift[last];
      at_[count_][r] = same ? at_[count_][r - 1] : sums_ + r * kTile;
      if (!same) load_key_bias(view, row, sums_ + r * kTile);
    }
    ++count_;
  }
  static HWY_INLINE void add(float* to, const float* from, float gate) {
    const F d;
    for (int64_t c = 0; c < kTile; c += kN) {
      const V gated = hn::Mul(hn::Set(d, gate), hn::LoadU(d, from + c));
      hn::Store(hn::Add(hn::Load(d, to + c), gated), d, to + c);
    }
  }

  int count_;
  const Block* paired_ = nullptr;  // adds cells by classes of pairs, in registers
  int64_t tile_ = 0;
  int group_ = 0;
  const float* flat_ = nullptr;  // [kGroup]
  float own_flat_[kGroup];
  const float* at_[kMost + 3][kGroup];
  const float* gates_[kMost + 3] = {};  // of a gated panel: [kGroup]
  HWY_ALIGN_MAX float sums_[kGroup * kTile];
};

// c tanh(score / c) of scores that have their terms, and then what a floating mask adds. Without either
// it does nothing.
class CapAndMask {
 public:
  // `beyond`: as of GroupSight.
  HWY_INLINE CapAndMask(const TileView& view, int group, bool beyond) {
    const Problem& problem = *view.block.problem;
    cap_ = static_cast<float>(problem.softcap * kLog2e);
    if (active()) to_unit_ = static_cast<float>(2.0 / problem.softcap);
    masked_ = problem.visible.floating_mask();
    if (masked_) read(view, group, beyond);
  }
  HWY_INLINE bool active() const { return cap_ != 0.0f; }

  // Columns [c, c + kVectors * kN) of the group's rows from `row` on. `slopes` [kGroup, kTile] or null: the
  // derivatives of the softcap.
  template <int R, int kVectors>
  HWY_INLINE void apply(V (&s)[R][kVectors], int64_t c, float* slopes = nullptr,
                        int row = 0) const {
    const F d;
    if (HWY_UNLIKELY(active())) {
      const V to_unit = hn::Set(d, to_unit_), cap = hn::Set(d, cap_), one = hn::Set(d, 1.0f);
      RELPOS_UNROLLED(r, R) {
        RELPOS_UNROLLED(v, kVectors) {
          const V t = tanh_of_log2(hn::Mul(s[r][v], to_unit));
          const int64_t at = (row + r) * kTile + c + v * kN;
          if (slopes != nullptr) hn::Store(hn::NegMulAdd(t, t, one), d, slopes + at);
          s[r][v] = hn::Mul(t, cap);
        }
      }
    }
    if (!masked_) return;
    const V to_log2 = hn::Set(d, static_cast<float>(kLog2e));
    RELPOS_UNROLLED(r, R) {
      const float* from = rows_[row + r] + c;
      RELPOS_UNROLLED(v, kVectors) {
        s[r][v] = hn::MulAdd(hn::LoadU(d, from + v * kN), to_log2, s[r][v]);
      }
    }
  }

 private:
  HWY_INLINE void read(const TileView& view, int group, bool beyond) {
    const Block& block = view.block;
    if (beyond || !block.mask_in_place || (view.t + 1) * kTile > block.problem->keys) {
      read_mask(block, group, view.t, beyond, own_, rows_);
      return;
    }
    for (int r = 0; r < kGroup; ++r) {
      rows_[r] = reinterpret_cast<const float*>(block.mask_tile(group + r, view.t));
    }
  }

  float cap_, to_unit_;  // log2 units; to_unit_ is not set where there is no cap
  bool masked_;
  const float* rows_[kGroup];
  HWY_ALIGN_MAX float own_[kGroup * kTile];
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace relpos
HWY_AFTER_NAMESPACE();

#endif
