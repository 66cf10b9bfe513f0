#include "kernels/drive/query_block.h"

#include <algorithm>
#include <numeric>

#include "kernels/block/load_rows.h"

namespace relpos {
namespace {

bool reads_by_tile(const Plan& plan) {
  bool any = plan.skips_tiles || plan.rotations.decays();
  EveryTerm::for_each([&]<typename Kind>() { any = any || Kind::by_tile(plan); });
  return any;
}

}  // namespace

QueryBlock::QueryBlock(const Plan& plan, Workspace& memory)
    : plan_(plan),
      terms_(plan, memory),
      skip_(plan),
      decayed_(memory.take<float>(plan.rotations.decays() ? kRows * plan.Dp : 0)),
      decay_(memory.take<float>(plan.rotations.decays() ? plan.Dp : 0)),
      raw_(memory.take<float>(kRows * plan.Dp)),
      by_tile_(reads_by_tile(plan)),
      words_(memory.take<uint64_t>(plan.p.visible.tiles.given() ? kTilesAtATime * kRows : 0)),
      q_(memory.take<float>(kRows * plan.Dp)),
      narrow_(plan, plan.D, plan.pairs.Dq(), memory) {
  block.problem = &plan.p;
  block.kernels = &plan.kernels;
  block.narrow_q = narrow_.rows();
  block.narrow_qt = narrow_.transposed();
  block.Dq = plan.pairs.Dq();
  block.Dvq = plan.pairs.Dvq();
  if (plan.p.visible.mask.given()) {
    const TensorView& mask = plan.p.visible.mask;
    block.mask_step = kTile * mask.strides[3] * item_size(mask.dtype);
    block.mask_in_place = mask.dtype == DType::kFloat32 && has_vector_rows(mask);
  }
  // Queries that decay are scaled before they are rounded, tile by tile.
  if (!plan.rotations.decays()) block.score_scale = static_cast<float>(plan.p.scale * kLog2e);
  block.D = plan.D;
  block.Dp = plan.Dp;
  block.Dv = plan.Dv;
  block.Dvp = plan.Dvp;
}

void QueryBlock::begin(int64_t batch) {
  block.batch = batch;
  block.rows = 0;
  block.scores.clear();
  block.ramps.clear();
  block.pairs.clear();
  block.values.clear();
}

void QueryBlock::add_rows(int64_t h, int64_t first, int64_t end) {
  const Problem& p = plan_.p;
  const int from = block.rows, to = from + static_cast<int>(end - first);
  block.rows = to;
  std::fill(block.head + from, block.head + to, h);
  for (int row = from; row < to && p.visible.mask.given(); ++row) {
    block.mask_row[row] = p.visible.mask_row(block.batch, h, first + row - from);
  }
  range_found_ = from == 0 && see_as_before(first, end);
  seen_as_ = from == 0 ? SeenAs{block.batch, first, end} : SeenAs{};
  if (range_found_) return;
  std::iota(block.index + from, block.index + to, first);
  if (p.positions.consecutive) {
    std::iota(block.position + from, block.position + to, p.positions.query(block.batch, first));
  } else {
    std::transform(block.index + from, block.index + to, block.position + from,
                   [&](int64_t i) { return p.positions.query(block.batch, i); });
  }
  if (p.visible.span.empty()) {
    std::fill(block.lo + from, block.lo + to, 0);
    std::fill(block.hi + from, block.hi + to, p.keys);
  } else {
    for (int row = from; row < to; ++row) {
      const auto [lo, hi] = p.visible.interval(block.batch, block.index[row]);
      block.lo[row] = std::max<int64_t>(lo, 0);
      block.hi[row] = std::min(hi, p.keys);
    }
  }
}

bool QueryBlock::see_as_before(int64_t first, int64_t end) const {
  const Problem& p = plan_.p;
  const bool shared = p.visible.rows == 1 && p.positions.shared();
  return first == seen_as_.first && end == seen_as_.end && !p.visible.tiles.given() &&
         (shared || block.batch == seen_as_.batch);
}

std::pair<int64_t, int64_t> QueryBlock::tile_range() const {
  if (seen_from_ >= seen_to_) return {0, 0};
  return {seen_from_ / kTile, (seen_to_ + kTile - 1) / kTile};
}

void QueryBlock::load() {
  find_mask_rows();
  find_range();
  load_queries();
  terms_.for_each([&]<typename Kind>(Kind& kind) { kind.attach(block, raw_.get()); });
  skip_.start(block);
}

void QueryBlock::find_mask_rows() {
  mask_rows_.clear();
  const SeenTiles& tiles = plan_.p.visible.tiles;
  for (int row = 0; tiles.given() && row < block.rows;) {
    const int64_t h = block.head[row], i = block.index[row];
    const auto same = [&](int other) {
      return block.head[other] == h && block.index[other] / tiles.rows() == i / tiles.rows();
    };
    int end = row + 1;
    while (end < block.rows && same(end)) ++end;
    mask_rows_.push_back({row, end - row, i % tiles.rows(), tiles.of(block.batch, h, i)});
    row = end;
  }
}

int64_t QueryBlock::next_seen(int64_t t) const {
  int64_t next = plan_.tiles;
  const SeenTiles::Entry* last = nullptr;
  for (const MaskRows& rows : mask_rows_) {
    if (rows.entries.empty() || rows.entries.data() == last) continue;  // heads that share a mask
    last = rows.entries.data();
    const SeenTiles::Entry* found = SeenTiles::from(rows.entries, t);
    if (found != nullptr) next = std::min(next, found->tile);
  }
  return next;
}

void QueryBlock::bring_words(int64_t t, int64_t count) {
  block.words_from = t;
  for (int64_t n = 0; n < count; ++n) block.words[n] = words_of(t + n, words_.get() + n * kRows);
}

const uint64_t* QueryBlock::words_of(int64_t t, uint64_t* own) const {
  const SeenTiles& tiles = plan_.p.visible.tiles;
  bool all = true;
  for (const MaskRows& rows : mask_rows_) {
    const SeenTiles::Entry* found = SeenTiles::find(rows.entries, t);
    const uint64_t* words = found == nullptr ? nullptr : tiles.words(*found);
    if (words != nullptr && mask_rows_.size() == 1) return words + rows.offset;
    all = all && found != nullptr && words == nullptr;
    if (words != nullptr) {
      std::copy_n(words + rows.offset, rows.count, own + rows.first);
    } else {
      std::fill_n(own + rows.first, rows.count, found == nullptr ? uint64_t{0} : ~uint64_t{0});
    }
  }
  return all ? nullptr : own;
}

void QueryBlock::find_range() {
  if (range_found_) return;
  constexpr int64_t kMost = INT64_MAX, kLeast = INT64_MIN;
  int64_t all_from = 0, all_to = plan_.p.keys, seen_from = all_to, seen_to = 0;
  int64_t low = kMost, high = kLeast;             // distances, less the first key's position
  int64_t first_key = 0, end_key = plan_.p.keys;  // what a mask by tiles lets a row see is of these
  if (plan_.p.visible.tiles.given()) {
    first_key = kMost;
    end_key = 0;
    for (const MaskRows& rows : mask_rows_) {
      if (rows.entries.empty()) continue;
      first_key = std::min(first_key, rows.entries.front().tile * kTile);
      end_key = std::max(end_key, (rows.entries.back().tile + 1) * kTile);
    }
  }
  block.first_of_all = kMost;
  block.last_of_all = kLeast;
  for (int group = 0; group < block.rows; group += kGroup) {
    int64_t first = kMost, last = kLeast;
    for (int row = group; row < std::min(group + kGroup, block.rows); ++row) {
      const int64_t lo = block.lo[row], hi = block.hi[row], position = block.position[row];
      first = std::min(first, position);
      last = std::max(last, position);
      all_from = std::max(all_from, lo);
      all_to = std::min(all_to, hi);
      const int64_t from = std::max(lo, first_key), to = std::min(hi, end_key);
      if (from >= to) continue;
      seen_from = std::min(seen_from, from);
      seen_to = std::max(seen_to, to);
      low = std::min(low, from - position);
      high = std::max(high, to - 1 - position);
    }
    block.first_position[group / kGroup] = first;
    block.last_position[group / kGroup] = last;
    block.first_of_all = std::min(block.first_of_all, first);
    block.last_of_all = std::max(block.last_of_all, last);
  }
  block.all_from = all_from;
  block.all_to = all_to;
  seen_from_ = seen_from;
  seen_to_ = seen_to;
  block.range = plan_.range;
  if (!plan_.p.positions.consecutive) return narrow_range();
  const int64_t key = plan_.p.positions.key(block.batch, 0);
  block.range = low <= high ? std::pair{key + low, key + high}
                            : std::pair{plan_.range.first, plan_.range.first};
}

// Where keys have positions of their own: what lies between the keys that a mask by tiles may show.
void QueryBlock::narrow_range() {
  if (!plan_.p.visible.tiles.given()) return;
  int64_t first = INT64_MAX, last = INT64_MIN;
  for (int64_t j = seen_from_; j < seen_to_; ++j) {
    const int64_t position = plan_.p.positions.key(block.batch, j);
    first = std::min(first, position);
    last = std::max(last, position);
  }
  block.range = first <= last ? std::pair{first - block.last_of_all, last - block.first_of_all}
                              : std::pair{plan_.range.first, plan_.range.first};
}

void QueryBlock::load_queries() {
  const Problem& p = plan_.p;
  const int64_t Dp = plan_.Dp, end = padded_rows();
  const auto scale = static_cast<float>(p.scale * kLog2e);
  constexpr float kOne = 1.0f;
  float* q = block.q = q_.get();
  std::fill(q + block.rows * Dp, q + end * Dp, 0.0f);
  std::fill(block.position + block.rows, block.position + end, 0);
  if (p.visible.mask.given()) {
    std::fill(block.mask_row + block.rows, block.mask_row + end, block.mask_row[block.rows - 1]);
  }
  if (plan_.unit == nullptr && plan_.rotations.none() && plan_.query_added.size() == 0 &&
      plan_.D == Dp && row_in_place(p.query, block.batch, 0, 0) != nullptr) {
    for_each_head(block, [&](int64_t head, int first, int rows) {
      const float* from = row_in_place(p.query, block.batch, head, block.index[first]);
      plan_.kernels.scale(rows, Dp, from, p.query.strides[2], &scale, 0, q + first * Dp, Dp);
      if (plan_.row_tables.empty() && plan_.pair_rows.empty()) return;
      plan_.kernels.scale(rows, Dp, from, p.query.strides[2], &kOne, 0, raw_.get() + first * Dp,
                          Dp);
    });
    return;
  }
  for (int row = 0; row < block.rows; ++row) {
    float* raw = raw_.get() + row * Dp;
    float* own = q + row * Dp;
    load_row(p.query, block.batch, block.head[row], block.index[row], plan_.D, Dp, raw);
    std::copy_n(raw, Dp, own);
    if (plan_.query_added.size() > 0) {
      const float* added = plan_.query_added.get() + block.head[row] * Dp;
      for (int64_t d = 0; d < Dp; ++d) own[d] += added[d];
    }
    plan_.rotations.apply(true, block.batch, block.head[row] / p.group(), block.index[row], own);
    if (!plan_.rotations.decays()) plan_.round(own, plan_.D);
  }
  if (plan_.unit != nullptr) narrow_.set(q, block.rows);
  plan_.kernels.scale(block.rows, Dp, q, Dp, &scale, 0, q, Dp);
}

void QueryBlock::emit(const KeyTile* tiles, int64_t t, int64_t count, const TensorView& dense,
                      const float* reference, const float* inverse_sum) {
  bring(t, count);
  over_tiles(tiles, t, count, nullptr, [&](const KeyTile* some, int64_t first, int64_t n) {
    for (int64_t x = 0; x < n; ++x) {
      plan_.kernels.emit(block, some[x], first + x, dense, reference, inverse_sum);
    }
  });
}

void QueryBlock::decay_queries(const KeyTile& tile) {
  if (!plan_.rotations.decays()) return;
  std::fill_n(decay_.get(), plan_.Dp, 1.0f);
  plan_.rotations.decay(
      tile.first_position - plan_.rotations.query_anchor(block.batch, block.index[0]),
      decay_.get());
  plan_.kernels.scale_columns(padded_rows(), plan_.Dp, q_.get(), decay_.get(), decayed_.get(),
                              false);
  plan_.round(decayed_.get(), padded_rows() * plan_.Dp);
  block.q = decayed_.get();
  if (plan_.unit != nullptr) narrow_.set(decayed_.get(), block.rows);
}

}  // namespace relpos
