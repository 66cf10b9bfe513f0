#include "kernels/plan/plan.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "base/half.h"
#include "kernels/block/load_rows.h"

namespace relpos {
namespace {

// [H, padded]: the sum of terms [H, n]; empty: none is given.
Buffer<float> sum_of_heads(std::span<const TermData> terms, int64_t heads, int64_t n,
                           int64_t padded, Workspace& memory) {
  if (terms.empty() || !terms.front().view.given()) return {};
  Buffer<float> sums = memory.zeros<float>(heads * padded);
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t d = 0; d < n; ++d) {
      double sum = 0.0;
      for (const TermData& u : terms) sum += u.view.at({h, d}) * u.multiplier;
      sums[h * padded + d] = static_cast<float>(sum);
    }
  }
  return sums;
}

TablePlan row_table_plan(const Problem& p, const RowTable& term, ClassWindow window, bool backward,
                         Workspace& memory) {
  if (term.table.view.shape[term.table.view.rank - 1] == 1) {
    TablePlan gated(p, std::move(window), term.table, backward, memory);
    if (gated.finite) return gated;
    window = std::move(gated.window);
  }
  const bool by_runs = Runs::count_of(window) * 4 < window.width * 3;
  return {p, std::move(window), term.table, by_runs, backward, true, memory};
}

}  // namespace

bool reads_in_place(const Problem& p) {
  return p.group() * p.queries <= kDirectRows && p.terms.column_tables.empty() &&
         std::none_of(p.terms.rotations.begin(), p.terms.rotations.end(),
                      [](const Rotation& r) { return r.decays(); });
}

Plan::Plan(const Problem& problem, bool is_backward, Workspace& memory, bool packs,
           const Kernels& of_target)
    : p(problem),
      kernels(of_target),
      backward(is_backward),
      direct(!backward && !packs && reads_in_place(p)),
      unit(direct ? nullptr : kernels.unit),
      D(p.head_dim),
      Dp(round_up(D, kLanes)),
      Dv(p.value_dim),
      Dvp(round_up(Dv, kLanes)),
      tiles(p.tiles()),
      range(p.distance_range()),
      shifts(p),
      rotations(p, memory),
      coordinates(p, memory),
      pairs{D, Dv, backward} {
  if (range.first > range.second) range = {0, 0};
  biases = expand_biases(p, range, coordinates, shifts, direct, memory);
  query_added = sum_of_heads(p.terms.query_added, p.heads, D, Dp, memory);
  expand_key_biases(*this, memory);
  for (const RowTable& term : p.terms.row_tables) {
    const CoordinateTiles* at = coordinates.of(term);
    ClassWindow window(term.map, at == nullptr ? range : at->range(), memory);
    row_tables.push_back(row_table_plan(p, term, std::move(window), backward, memory));
    row_tables.back().scale = term.scale.value_or(p.scale);
    row_tables.back().at = at;
    row_tables.back().added = sum_of_heads({&term.added, 1}, p.heads, row_tables.back().rank,
                                           row_tables.back().padded_rank, memory);
  }
  pair_biases = expand_pair_biases(p, memory);
  pair_rows = expand_pair_rows(p, backward, memory);
  for (const ValueTable& term : p.terms.value_tables) {
    if (!p.value.given()) continue;
    value_tables.emplace_back(p, ClassWindow(term.map, range, memory), term.table, false, !backward,
                              backward, memory);
  }
  tile_floats = D * kTile + (backward ? kTile * Dp + Dv * kTile : kTile * Dvp);
  if (unit != nullptr) tile_floats = pairs.tile();
  for (const ColumnTable& term : p.terms.column_tables) {
    columns.push_back(
        {TablePlan(p, ClassWindow(term.map, range, memory), term.table, true, true, true, memory),
         tile_floats});
    columns.back().scale = term.scale.value_or(p.scale);
    tile_floats += kTile * columns.back().padded_rank;
  }
  skips_tiles = p.softcap == 0.0 && find_peaks(*this, biases, memory);
}

int64_t Plan::most_cells(const ClassWindow& window) const noexcept {
  return p.positions.consecutive ? std::min(window.width, p.keys + kRows + kLanes) : window.width;
}

Cut Plan::cells_of_tiles(const ClassWindow& window, const Block& block, int64_t t,
                         int64_t count) const {
  const auto [first, last] = std::minmax_element(block.position, block.position + block.rows);
  const int64_t end = std::min(p.keys, (t + count) * kTile);
  const auto seen = [&](int64_t distance) {
    return std::clamp(distance, block.range.first, block.range.second);
  };
  const TokenPositions& at = p.positions;
  return window.cut(
      {seen(at.key(block.batch, t * kTile) - *last), seen(at.key(block.batch, end - 1) - *first)});
}

void Plan::round(float* row, int64_t n) const noexcept {
  for (int64_t d = 0; rounds && d < n; ++d) row[d] = widen_bfloat16(round_bfloat16(row[d]));
}

Plan::FloatRows Plan::key_rows(int64_t b, int64_t kv_head, int64_t first, int64_t count,
                               float* memory) const {
  const float* in_place = rotations.none() ? row_in_place(p.key, b, kv_head, first) : nullptr;
  if (in_place != nullptr && !backward) return {in_place, p.key.strides[2]};
  for (int64_t c = 0; c < count; ++c) {
    load_row(p.key, b, kv_head, first + c, D, Dp, memory + c * Dp);
    rotations.apply(false, b, kv_head, first + c, memory + c * Dp);
    round(memory + c * Dp, D);
  }
  return {memory, Dp};
}

Plan::FloatRows Plan::value_rows(int64_t b, int64_t kv_head, int64_t first, int64_t count,
                                 float* memory) const {
  const float* in_place = row_in_place(p.value, b, kv_head, first);
  // The values of a packed tile have no gaps.
  const bool packed = p.value.strides[2] == Dvp && Dv == Dvp &&
                      reinterpret_cast<uintptr_t>(in_place) % (kLanes * sizeof(float)) == 0;
  if (in_place != nullptr && (backward || packed)) return {in_place, p.value.strides[2]};
  for (int64_t c = 0; c < count; ++c) {
    load_row(p.value, b, kv_head, first + c, Dv, Dvp, memory + c * Dvp);
  }
  return {memory, Dvp};
}

KeyTile Plan::pack_tile(int64_t b, int64_t kv_head, int64_t t, float* memory, int64_t* positions,
                        float* rows) const {
  const int64_t first = t * kTile, count = std::min(kTile, p.keys - first);
  KeyTile tile;
  tile.memory = memory;
  if (unit != nullptr) {
    pack_pairs(b, kv_head, first, count, memory, rows, tile);
  } else {
    pack_rows(b, kv_head, first, count, memory, rows, tile);
  }
  pack_factors(b, kv_head, first, count, memory, tile);
  place(b, t, positions, tile);
  return tile;
}

void Plan::pack_rows(int64_t b, int64_t kv_head, int64_t first, int64_t count, float* memory,
                     float* rows, KeyTile& tile) const {
  tile.kt = memory;
  float* rest = memory + D * kTile;
  float* to = backward ? rest : rows;
  const FloatRows k = key_rows(b, kv_head, first, count, to);
  tile.k_finite = kernels.transpose(k.data, k.stride, count, D, memory);
  if (skips_tiles) tile.norm = kernels.largest_norm(memory, count, D);
  if (backward) {
    std::fill_n(rest + count * Dp, (kTile - count) * Dp, 0.0f);
    tile.k = rest;
    rest += kTile * Dp;
  }
  if (p.value.given()) pack_values(b, kv_head, first, count, rest, rows, tile);
}

Plan::HalfRows Plan::narrow_rows(bool keys, int64_t b, int64_t kv_head, int64_t first,
                                 int64_t count, float* rows, uint16_t* to) const {
  const TensorView& view = keys ? p.key : p.value;
  const int64_t n = keys ? D : Dv, stride = keys ? pairs.Dq() : pairs.Dvq();
  const bool as_they_are = n > 0 && view.dtype == DType::kBFloat16 && view.strides[3] == 1 &&
                           (!keys || rotations.none());
  const auto* in_place = static_cast<const std::byte*>(view.data);
  if (as_they_are) in_place += 2 * view.offset({b, kv_head, first, 0});
  if (as_they_are && n == stride && view.strides[2] % 2 == 0 &&
      reinterpret_cast<uintptr_t>(in_place) % sizeof(float) == 0) {  // numbers are read by twos
    return {reinterpret_cast<const uint16_t*>(in_place), view.strides[2]};
  }
  for (int64_t c = 0; c < count; ++c) {
    uint16_t* row = to + c * stride;
    std::fill(row + n, row + stride, uint16_t{0});
    if (as_they_are) {
      std::memcpy(row, in_place + 2 * c * view.strides[2], 2 * static_cast<size_t>(n));
      continue;
    }
    load_row(view, b, kv_head, first + c, n, n, rows);
    if (keys) rotations.apply(false, b, kv_head, first + c, rows);
    kernels.narrow_bfloat16(rows, n, row);
  }
  return {to, stride};
}

bool Plan::finite(const HalfRows& rows, int64_t count, int64_t n) const {
  bool all = true;
  for (int64_t c = 0; c < count; ++c) all = unit->finite(n, rows.data + c * rows.stride) && all;
  return all;
}

void Plan::pack_pairs(int64_t b, int64_t kv_head, int64_t first, int64_t count, float* memory,
                      float* rows, KeyTile& tile) const {
  uint16_t* narrow = reinterpret_cast<uint16_t*>(rows + std::max(Dp, Dvp));
  // [n, kTile] pairs of the transposed rows, and [kTile, n] pairs of two neighbours; zeros up to a
  // multiple of kUnitDepth rows.
  const auto transposed = [&](const HalfRows& from, int64_t n, float* to) {
    kernels.transpose(reinterpret_cast<const float*>(from.data), from.stride / 2, count, n / 2, to);
    return reinterpret_cast<const uint16_t*>(to);
  };
  const auto paired = [&](const HalfRows& from, int64_t n, float* to) {
    unit->pair_rows(count, n, from.data, from.stride, reinterpret_cast<uint16_t*>(to));
    const int64_t own = (count + 1) / 2 * n, all = round_up(count, kUnitDepth) / 2 * n;
    std::fill(to + own, to + all, 0.0f);
    return reinterpret_cast<const uint16_t*>(to);
  };
  const HalfRows k = narrow_rows(true, b, kv_head, first, count, rows, narrow);
  tile.k_finite = finite(k, count, D);
  if (skips_tiles) tile.norm = largest_norm(k.data, k.stride, count, D);
  tile.pairs.kt = transposed(k, pairs.Dq(), memory);
  float* rest = memory + pairs.keys();
  if (backward) {
    tile.pairs.k = paired(k, Dp, rest);
    rest += pairs.rows_of_keys();
  }
  if (!p.value.given()) return;
  const HalfRows v = narrow_rows(false, b, kv_head, first, count, rows, narrow);
  tile.v_finite = (p.visible.everything() && !skips_tiles) || finite(v, count, Dv);
  if (backward) {
    tile.pairs.vt = transposed(v, pairs.Dvq(), rest);
  } else {
    tile.pairs.v = paired(v, Dvp, rest);
  }
}

void Plan::pack_values(int64_t b, int64_t kv_head, int64_t first, int64_t count, float* memory,
                       float* rows, KeyTile& tile) const {
  const FloatRows v = value_rows(b, kv_head, first, count, backward ? rows : memory);
  if (backward) {
    tile.v_finite = kernels.transpose(v.data, v.stride, count, Dv, memory);
    tile.vt = memory;
    return;
  }
  tile.v = v.data;
  tile.v_finite = (p.visible.everything() && !skips_tiles) || kernels.finite(v.data, count * Dvp);
  if (v.data == memory) std::fill_n(memory + count * Dvp, (kTile - count) * Dvp, 0.0f);
}

void Plan::pack_factors(int64_t b, int64_t kv_head, int64_t first, int64_t count, float* memory,
                        KeyTile& tile) const {
  for (size_t n = 0; n < columns.size(); ++n) {
    const ColumnPlan& column = columns[n];
    const TermData& factor = p.terms.column_tables[n].factor;
    const bool own = factor.view.given();
    const auto scale = static_cast<float>(column.scale * (own ? factor.multiplier : 1.0) * kLog2e);
    const int64_t rank = column.padded_rank;
    float* rows = memory + column.factors_at;
    std::fill_n(rows + count * rank, (kTile - count) * rank, 0.0f);
    for (int64_t c = 0; c < count; ++c) {
      load_row(own ? factor.view : p.key, b, kv_head, first + c, column.rank, rank,
               rows + c * rank);
    }
    kernels.scale(count, rank, rows, rank, &scale, 0, rows, rank);
    tile.factors_finite = tile.factors_finite && kernels.finite(rows, kTile * rank);
  }
}

void Plan::place(int64_t b, int64_t t, int64_t* positions, KeyTile& tile) const {
  const int64_t first = t * kTile;
  tile.first_position = p.positions.key(b, first);
  if (p.positions.consecutive) return;
  for (int64_t c = 0; c < kTile; ++c) {
    positions[c] = first + c < p.keys ? p.positions.key(b, first + c) : tile.first_position + c;
    tile.run = tile.run && positions[c] == tile.first_position + c;
  }
  tile.positions = positions;
}

}  // namespace relpos
