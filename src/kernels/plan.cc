#include "kernels/plan.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/angles.h"
#include "base/parallel.h"
#include "kernels/convert.h"

namespace relpos {
namespace {

// Angles of consecutive or arbitrary positions: exp(i (64 c + f) w) = exp(i 64 c w) exp(i f w), so
// that a run of positions costs one complex product each, in double, rounded once.
class AngleTable {
 public:
  explicit AngleTable(const Rotation& rotation)
      : r_(rotation),
        pairs_(rotation.dims / 2),
        fine_cos_(static_cast<size_t>(kTile * pairs_)),
        fine_sin_(fine_cos_.size()),
        coarse_cos_(static_cast<size_t>(pairs_)),
        coarse_sin_(coarse_cos_.size()) {
    for (int64_t f = 0; f < kTile; ++f) {
      angle_table(r_, f, &fine_cos_[static_cast<size_t>(f * pairs_)],
                  &fine_sin_[static_cast<size_t>(f * pairs_)]);
    }
  }

  void write(int64_t position, float* cos, float* sin) {
    if (r_.float32_angles) {
      angle_table(r_, position, cos, sin);
      scale(cos, sin);
      return;
    }
    const int64_t coarse = position & ~(kTile - 1);
    if (!ready_ || coarse != coarse_) {
      angle_table(r_, coarse, coarse_cos_.data(), coarse_sin_.data());
      coarse_ = coarse;
      ready_ = true;
    }
    const auto fine = static_cast<size_t>((position - coarse) * pairs_);
    for (size_t n = 0; n < static_cast<size_t>(pairs_); ++n) {
      const double c = fine_cos_[fine + n], s = fine_sin_[fine + n];
      cos[n] = static_cast<float>(coarse_cos_[n] * c - coarse_sin_[n] * s);
      sin[n] = static_cast<float>(coarse_sin_[n] * c + coarse_cos_[n] * s);
    }
    scale(cos, sin);
  }

 private:
  void scale(float* cos, float* sin) const {
    if (r_.magnitude == 1.0) return;
    for (int64_t n = 0; n < pairs_; ++n) {
      cos[n] = static_cast<float>(cos[n] * r_.magnitude);
      sin[n] = static_cast<float>(sin[n] * r_.magnitude);
    }
  }

  const Rotation& r_;
  int64_t pairs_;
  std::vector<double> fine_cos_, fine_sin_, coarse_cos_, coarse_sin_;
  int64_t coarse_ = 0;
  bool ready_ = false;
};

}  // namespace

bool reads_in_place(const Problem& p) {
  return p.group() * p.queries <= kDirectRows && p.terms.column_tables.empty() &&
         std::none_of(p.terms.rotations.begin(), p.terms.rotations.end(),
                      [](const Rotation& r) { return !r.log_decay.empty(); });
}

Plan::Plan(const Problem& problem, bool backward, bool packs)
    : p(problem),
      D(p.head_dim),
      Dp(round_up(D, kLanes)),
      Dv(p.value_dim),
      Dvp(round_up(Dv, kLanes)),
      tiles(p.tiles()),
      direct(!backward && !packs && reads_in_place(p)),
      range(p.distance_range()),
      shifts(p),
      backward_(backward) {
  if (range.first > range.second) range = {0, 0};
  for (size_t n = 0; n < p.terms.biases.size(); ++n) expand_bias(n);
  expand_key_biases();
  sum_query_added();
  for (const RowTable& term : p.terms.row_tables) {
    Window window(term.map, range);
    const bool by_runs = Runs(window).classes.size() * 4 < window.classes.size() * 3;
    row_tables.emplace_back(std::move(window), term.table, by_runs, backward_, true);
    row_tables.back().scale = term.scale.value_or(p.scale);
  }
  for (const ValueTable& term : p.terms.value_tables) {
    if (p.value.given()) {
      value_tables.emplace_back(Window(term.map, range), term.table, false, !backward_, backward_);
    }
  }
  tile_floats_ = D * kTile + (backward_ ? kTile * Dp + Dv * kTile : kTile * Dvp);
  for (const ColumnTable& term : p.terms.column_tables) {
    ColumnPlan plan;
    plan.table = TablePlan(Window(term.map, range), term.table, true, true, true);
    plan.table.scale = term.scale.value_or(p.scale);
    plan.factors_at = tile_floats_;
    tile_floats_ += kTile * plan.table.padded_rank;
    columns.push_back(std::move(plan));
  }

  find_peaks();
  for (const Rotation& rotation : p.terms.rotations) {
    if (!rotation.log_decay.empty()) {
      log_decay.resize(static_cast<size_t>(D), 0.0);
      const bool half = rotation.layout == PairLayout::kHalf;
      for (int64_t n = 0; n < rotation.dims / 2; ++n) {
        const int64_t first = rotation.start + (half ? n : 2 * n);
        const int64_t second = rotation.start + (half ? n + rotation.dims / 2 : 2 * n + 1);
        log_decay[static_cast<size_t>(first)] = log_decay[static_cast<size_t>(second)] =
            rotation.log_decay[static_cast<size_t>(n)];
      }
    }
    rotary_.push_back(tabulate(rotation));
  }
}

Plan::Rotary Plan::tabulate(const Rotation& rotation) const {
  if (!rotation.axis.empty()) return tabulate_axes(rotation);
  const Positions& at = p.positions;
  Rotary rotary{&rotation, {}, {}, 0, at.q_rows * p.queries, at.q_rows, at.k_rows};
  AngleTable table(rotation);
  const int64_t pairs = rotation.dims / 2;
  const auto write = [&](int64_t row, int64_t position) {
    if (row % kTile == 0) check_cancelled();
    table.write(position, rotary.cos.get() + row * pairs, rotary.sin.get() + row * pairs);
  };
  if (at.consecutive && at.shared()) {  // queries and keys at one position share a row
    const int64_t q = at.q[0], k = at.k[0];
    const int64_t gap = std::max(k - (q + p.queries), q - (k + p.keys));
    if (gap <= 0) {
      const int64_t low = std::min(q, k), high = std::max(q + p.queries, k + p.keys);
      rotary.queries_at = q - low;
      rotary.keys_at = k - low;
      rotary.allot(high - low);
      for (int64_t row = 0; row < high - low; ++row) write(row, low + row);
      return rotary;
    }
  }
  rotary.allot(rotary.keys_at + at.k_rows * p.keys);
  for (int64_t b = 0; b < at.q_rows; ++b) {
    for (int64_t i = 0; i < p.queries; ++i) write(b * p.queries + i, at.query(b, i));
  }
  for (int64_t b = 0; b < at.k_rows; ++b) {
    for (int64_t j = 0; j < p.keys; ++j) write(rotary.keys_at + b * p.keys + j, at.key(b, j));
  }
  return rotary;
}

// The pairs of one axis at a time, as a rotation of their own.
Plan::Rotary Plan::tabulate_axes(const Rotation& rotation) const {
  const Coordinates& at = *rotation.coordinates;
  Rotary rotary{&rotation, {}, {}, 0, at.q_rows * p.queries, at.q_rows, at.k_rows};
  const int64_t keys = at.k_rows * p.keys;
  rotary.allot(rotary.keys_at + keys);
  for (int64_t axis = 0; axis < at.axes; ++axis) {
    Rotation own;
    own.float32_angles = rotation.float32_angles;
    own.magnitude = rotation.magnitude;
    std::vector<size_t> pairs;
    for (size_t n = 0; n < rotation.axis.size(); ++n) {
      if (rotation.axis[n] != axis) continue;
      pairs.push_back(n);
      own.frequency.push_back(rotation.frequency[n]);
    }
    own.dims = 2 * std::ssize(pairs);
    AngleTable table(own);
    std::vector<float> cos(pairs.size()), sin(pairs.size());
    const auto write = [&](const std::vector<int64_t>& coordinates, int64_t count, int64_t first) {
      for (int64_t row = 0; row < count; ++row) {
        if (row % kTile == 0) check_cancelled();
        table.write(coordinates[static_cast<size_t>(axis * count + row)], cos.data(), sin.data());
        const int64_t to = (first + row) * std::ssize(rotation.axis);
        for (size_t n = 0; n < pairs.size(); ++n) {
          rotary.cos[to + static_cast<int64_t>(pairs[n])] = cos[n];
          rotary.sin[to + static_cast<int64_t>(pairs[n])] = sin[n];
        }
      }
    };
    write(at.q, rotary.keys_at, 0);
    write(at.k, keys, rotary.keys_at);
  }
  return rotary;
}

int64_t Plan::bytes() const noexcept {
  int64_t floats = 2 * key_bias.size() + query_added.size();
  for (const BiasPlan& bias : biases) {
    floats += bias.cells.size() + bias.peaks.size() +
              2 * static_cast<int64_t>(bias.window.classes.size());
  }
  for (const TablePlan& t : row_tables) floats += t.floats();
  for (const TablePlan& t : value_tables) floats += t.floats();
  for (const ColumnPlan& c : columns) floats += c.table.floats();
  for (const Rotary& r : rotary_) {
    floats += r.cos.size() + r.sin.size();
  }
  return 4 * floats;
}

void Plan::load_row(const TensorView& view, int64_t b, int64_t h, int64_t i, int64_t n,
                    int64_t padded, float* row) {
  const int64_t at = view.offset({b, h, i, 0}), stride = view.strides[3];
  const auto* bytes = static_cast<const unsigned char*>(view.data);
  if (view.dtype == DType::kFloat32 && stride == 1) {
    std::memcpy(row, bytes + at * 4, static_cast<size_t>(n) * 4);
  } else if (view.dtype == DType::kFloat32) {
    for (int64_t d = 0; d < n; ++d) std::memcpy(row + d, bytes + (at + d * stride) * 4, 4);
  } else if (view.dtype == DType::kBFloat16 && stride == 1) {
    convert_kernels().widen_bfloat16(bytes + at * 2, n, row);
  } else if (view.dtype == DType::kFloat16 && stride == 1) {
    convert_kernels().widen_float16(bytes + at * 2, n, row);
  } else {
    for (int64_t d = 0; d < n; ++d) row[d] = static_cast<float>(view.load(at + d * stride));
  }
  std::fill(row + n, row + padded, 0.0f);
}

void Plan::store_row(const TensorView& view, int64_t b, int64_t h, int64_t i, int64_t n,
                     const float* row) {
  const int64_t at = view.offset({b, h, i, 0}), stride = view.strides[3];
  auto* bytes = static_cast<unsigned char*>(view.data);
  if (view.dtype == DType::kFloat32 && stride == 1) {
    std::memcpy(bytes + at * 4, row, static_cast<size_t>(n) * 4);
  } else if (view.dtype == DType::kFloat32) {
    for (int64_t d = 0; d < n; ++d) std::memcpy(bytes + (at + d * stride) * 4, row + d, 4);
  } else if (view.dtype == DType::kBFloat16 && stride == 1) {
    convert_kernels().narrow_bfloat16(row, n, bytes + at * 2);
  } else if (view.dtype == DType::kFloat16 && stride == 1) {
    convert_kernels().narrow_float16(row, n, bytes + at * 2);
  } else {
    for (int64_t d = 0; d < n; ++d) view.store(at + d * stride, static_cast<double>(row[d]));
  }
}

void Plan::rotate(bool query, int64_t b, int64_t i, float* row, float direction) const {
  for (const Rotary& rotary : rotary_) {
    const Rotation& r = *rotary.rotation;
    const int64_t pairs = r.dims / 2;
    const int64_t rows = query ? rotary.q_rows : rotary.k_rows;
    const int64_t at = (query ? rotary.queries_at : rotary.keys_at) +
                       (rows == 1 ? 0 : b) * (query ? p.queries : p.keys) + i;
    tile_kernels().rotate(row + r.start, pairs, r.layout == PairLayout::kInterleaved,
                          rotary.cos.get() + at * pairs, rotary.sin.get() + at * pairs, direction);
  }
  if (log_decay.empty()) return;
  if (query) {
    decay(query_anchor(b, i) - p.positions.query(b, i), row);
  } else {
    decay(p.positions.key(b, i) - p.positions.key(b, i / kTile * kTile), row);
  }
}

void Plan::decay(int64_t distance, float* row) const {
  for (int64_t d = 0; d < D; ++d) {
    const double rate = log_decay[static_cast<size_t>(d)];
    if (rate != 0.0) row[d] *= static_cast<float>(std::exp(static_cast<double>(distance) * rate));
  }
}

const float* Plan::rows_in_place(const TensorView& view, int64_t b, int64_t h, int64_t i) {
  if (view.dtype != DType::kFloat32 || view.strides[3] != 1) return nullptr;
  return static_cast<const float*>(view.data) + view.offset({b, h, i, 0});
}

KeyTile Plan::pack_tile(int64_t b, int64_t kv_head, int64_t t, float* memory, int64_t* positions,
                        float* row) const {
  const TileKernels& kernels = tile_kernels();
  KeyTile tile;
  const int64_t first = t * kTile, keys = std::min(kTile, p.keys - first);
  float* kt = memory;
  float* second = kt + D * kTile;  // forward: v [kTile, Dvp]; backward: k [kTile, Dp], then vt
  tile.kt = kt;
  const float* k =
      backward_ || !rotary_.empty() ? nullptr : rows_in_place(p.key, b, kv_head, first);
  int64_t stride = p.key.strides[2];
  if (k == nullptr && (backward_ || Dp <= Dvp)) {  // the values come to lie there later
    for (int64_t c = 0; c < keys; ++c) {
      load_row(p.key, b, kv_head, first + c, D, Dp, second + c * Dp);
      rotate_key(b, first + c, second + c * Dp);
    }
    if (backward_) std::fill_n(second + keys * Dp, (kTile - keys) * Dp, 0.0f);
    k = second;
    stride = Dp;
  }
  if (k != nullptr) {
    tile.k_finite = kernels.transpose(k, stride, keys, D, kt);
  } else {
    std::fill_n(kt, D * kTile, 0.0f);
    for (int64_t c = 0; c < keys; ++c) {
      load_row(p.key, b, kv_head, first + c, D, Dp, row);
      rotate_key(b, first + c, row);
      tile.k_finite = tile.k_finite && kernels.finite(row, D);
      for (int64_t d = 0; d < D; ++d) kt[d * kTile + c] = row[d];
    }
  }

  if (skips_tiles) tile.norm = kernels.largest_norm(kt, keys, D);

  float* vt = second + kTile * Dp;
  const float* v = p.value.given() ? rows_in_place(p.value, b, kv_head, first) : nullptr;
  // Values without gaps, as a packed tile has them, stay where they lie.
  const bool lie_packed = v != nullptr && !backward_ && p.value.strides[2] == Dvp && Dv == Dvp &&
                          reinterpret_cast<uintptr_t>(v) % (kLanes * sizeof(float)) == 0;
  const bool needs_no_look = p.visible.everything() && !skips_tiles;
  if (!p.value.given()) {
    if (backward_) std::fill_n(vt, Dv * kTile, 0.0f);
  } else if (lie_packed) {
    tile.v_finite = needs_no_look || kernels.finite(v, keys * Dv);
  } else if (backward_ && v != nullptr) {
    tile.v_finite = kernels.transpose(v, p.value.strides[2], keys, Dv, vt);
  } else {
    if (backward_) std::fill_n(vt, Dv * kTile, 0.0f);
    for (int64_t c = 0; c < keys; ++c) {
      float* to = backward_ ? row : second + c * Dvp;
      load_row(p.value, b, kv_head, first + c, Dv, Dvp, to);
      if (backward_) {
        tile.v_finite = tile.v_finite && kernels.finite(row, Dv);
        for (int64_t d = 0; d < Dv; ++d) vt[d * kTile + c] = row[d];
      }
    }
    if (!backward_) {
      tile.v_finite = needs_no_look || kernels.finite(second, keys * Dvp);
      std::fill_n(second + keys * Dvp, (kTile - keys) * Dvp, 0.0f);
    }
  }
  if (backward_) {
    tile.k = second;
    tile.vt = vt;
  } else {
    tile.v = lie_packed ? v : second;
  }
  pack_factors(b, kv_head, t, tile, memory);
  tile.first_position = p.positions.key(b, first);
  if (!p.positions.consecutive) {
    for (int64_t c = 0; c < kTile; ++c) {
      positions[c] = c < keys ? p.positions.key(b, first + c) : tile.first_position + c;
      tile.run = tile.run && positions[c] == tile.first_position + c;
    }
    tile.positions = positions;
  }
  return tile;
}

void Plan::pack_factors(int64_t b, int64_t kv_head, int64_t t, KeyTile& tile, float* memory) const {
  tile.memory = memory;
  const int64_t first = t * kTile, keys = std::min(kTile, p.keys - first);
  for (size_t n = 0; n < columns.size(); ++n) {
    const ColumnPlan& column = columns[n];
    const TermData& factor = p.terms.column_tables[n].factor;
    const bool own = factor.view.given();
    const auto scale =
        static_cast<float>(column.table.scale * (own ? factor.multiplier : 1.0) * kLog2e);
    const int64_t rank = column.table.padded_rank;
    float* rows = memory + column.factors_at;
    std::fill_n(rows, kTile * rank, 0.0f);
    for (int64_t c = 0; c < keys; ++c) {
      float* row = rows + c * rank;
      load_row(own ? factor.view : p.key, b, kv_head, first + c, column.table.rank, rank, row);
      for (int64_t d = 0; d < rank; ++d) row[d] *= scale;
    }
    tile.factors_finite = tile.factors_finite && tile_kernels().finite(rows, kTile * rank);
  }
}

void Plan::add_row(Block& block, int64_t h, int64_t i) const {
  const int row = block.rows++;
  block.head[row] = h;
  block.index[row] = i;
  block.position[row] = p.positions.query(block.batch, i);
  const auto [lo, hi] = p.visible.interval(block.batch, i);
  block.lo[row] = std::max<int64_t>(lo, 0);
  block.hi[row] = std::min(hi, p.keys);
}

std::pair<int64_t, int64_t> Plan::tile_range(const Block& block) const {
  int64_t lo = p.keys, hi = 0;
  for (int row = 0; row < block.rows; ++row) {
    if (block.lo[row] >= block.hi[row]) continue;
    lo = std::min(lo, block.lo[row]);
    hi = std::max(hi, block.hi[row]);
  }
  if (lo >= hi) return {0, 0};
  return {lo / kTile, (hi + kTile - 1) / kTile};
}

}  // namespace relpos
