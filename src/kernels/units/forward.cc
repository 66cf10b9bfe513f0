// The forward pass of a block over tiles whose products a unit computes.
#include <algorithm>
#include <cmath>

#include "base/float_mode.h"
#include "kernels/units/guarded_products.h"
#include "kernels/units/kernels.h"

namespace relpos::bfloat16 {
namespace {

// o += weights of rows [from, end), which lie without gaps, times the values of a tile.
void add_values(Block& block, ForwardState& state, const KeyTile& tile, int64_t t, int from,
                int end, const uint16_t* weights) {
  const MatrixUnit& unit = *block.kernels->unit;
  const int64_t rows = round_up(end - from, kUnitRows), depth = TileKeys(block, t).depth;
  float* o = state.o + from * block.Dvp;
  if (tile.v_finite) {
    unit.gemm(rows, block.Dvp, depth, weights, depth, tile.pairs.v, block.Dvp, o, block.Dvp, true);
    return;
  }
  const VisibleRows visible(block, from, end, t);
  guarded_gemm(unit, rows, block.Dvp, depth, weights, tile.pairs.v, o,
               [&](int64_t row, int64_t key, int64_t) { return visible(row, key); });
}

// One product after the other, for parts of the rows, whose scores stay in the nearest cache.
class InTurn final : public ProductRows {
 public:
  InTurn(Block& block, ForwardState& state)
      : ProductRows(*block.kernels->unit), block_(block), state_(state) {}

  void run(const KeyTile& tile, int64_t t) {
    tile_ = &tile;
    t_ = t;
    block_.kernels->weigh_narrow(block_, state_, tile, t, *this);
  }

  float* group(int row) override {
    if (row % kPart == 0) start(row);
    return scores_ + row % kPart * kTile;
  }
  void weighed_group(int row) override {
    if (seen_ && row + kGroup >= end_) finish(false);
  }
  Chunk chunk(int row) override {
    if (row % kPart == 0) start(row);
    return {scores_ + row % kPart * kTile, weights_ + row % kPart * kTile};
  }
  void weighed_chunk(int row, bool rounded) override {
    if (row + kUnitRows >= end_) finish(rounded);
  }

 private:
  void start(int from) {
    from_ = from;
    end_ = std::min(block_.rows, from + kPart);
    seen_ = sees(block_, from_, end_, t_);
    if (!seen_) return;
    unit_.gemm(round_up(end_ - from_, kUnitRows), TileKeys(block_, t_).columns, block_.Dq,
               block_.narrow_q + from_ * block_.Dq, block_.Dq, tile_->pairs.kt, kTile, scores_,
               kTile, false);
  }
  void finish(bool rounded) {
    const int64_t depth = TileKeys(block_, t_).depth, rows = end_ - from_;
    if (!rounded) unit_.narrow(rows, depth, scores_, kTile, weights_, depth);
    std::fill_n(weights_ + rows * depth, (round_up(rows, kUnitRows) - rows) * depth, uint16_t{0});
    add_values(block_, state_, *tile_, t_, from_, end_, weights_);
  }

  Block& block_;
  ForwardState& state_;
  const KeyTile* tile_ = nullptr;
  int64_t t_ = 0;
  int from_ = 0, end_ = 0;
  bool seen_ = false;
  alignas(64) float scores_[kPart * kTile];
  alignas(64) uint16_t weights_[kPart * kTile];
};

// Products beside the softmax. The rows go in chunks of kUnitRows through all tiles; while the softmax is
// at chunk c, the unit computes the scores of chunk c + 1, then adds the values of chunk c - 1. Two chunks
// of scores and two of weights are kept: with more they leave the nearest cache.
class Beside final : public ProductRows {
 public:
  Beside(Block& block, ForwardState& state, const KeyTile* tiles, int64_t first, int64_t count)
      : ProductRows(*block.kernels->unit),
        block_(block),
        state_(state),
        tiles_(tiles),
        first_(first) {
    for (int64_t t = first; t < first + count; ++t) {
      for (int from = 0; from < block.rows; from += kUnitRows) {
        if (sees(block, from, end_of(from), t)) places_[count_++] = {t, from};
      }
    }
    // Of a chunk's tiles, one or more in each of the moments between two rows and the next two.
    const int64_t products = (kTile + block.Dvp) / kUnitRows, moments = kUnitRows / 2;
    each_time_ = static_cast<int>((products + moments - 1) / moments);
  }

  void run() {
    if (count_ == 0) return;
    begin_product();
    for (int c = 0; c < count_;) {
      const int64_t t = places_[c].t;
      std::fill_n(chunk_at_, kChunks, -1);
      for (; c < count_ && places_[c].t == t; ++c) chunk_at_[places_[c].from / kUnitRows] = c;
      block_.kernels->weigh_narrow(block_, state_, tiles_[t - first_], t, *this);
    }
    finish_product(values_of(count_ - 1));
    unit_.put(product_);
  }

  Chunk chunk(int row) override {
    const int c = chunk_at_[row / kUnitRows];
    await(c);
    return {scores(c), weights(c)};
  }
  void weighed_chunk(int row, bool rounded) override {
    const int c = chunk_at_[row / kUnitRows];
    if (!rounded) narrow(c, 0, end_of(row) - row, scores(c));
    finish(c);
  }

  // The rows of two chunks are brought together.
  float* group(int row) override {
    for_each_part(row, [&](int c, int first, int count, float* rows) {
      await(c);
      std::copy_n(scores(c) + first * kTile, count * kTile, rows);
    });
    return group_;
  }
  void weighed_group(int row) override {
    for_each_part(row, [&](int c, int first, int count, const float* rows) {
      narrow(c, first, count, rows);
      const int end = places_[c].from + first + count;
      if (end % kUnitRows == 0 || end >= block_.rows) finish(c);
    });
  }

 private:
  static constexpr int kChunks = kRows / kUnitRows;
  struct Place {
    int64_t t;
    int from;
  };

  int end_of(int from) const { return std::min<int>(block_.rows, from + kUnitRows); }
  float* scores(int c) { return scores_ + c % 2 * kUnitRows * kTile; }
  uint16_t* weights(int c) { return weights_ + c % 2 * kUnitRows * kTile; }

  // The order of products: scores of chunks 0, 1 and 2, values of 0, scores of 3, values of 1, and so on.
  static int scores_of(int c) { return c < 2 ? c : 2 * c - 2; }
  static int values_of(int c) { return 2 * c + 3; }

  // Calls f(chunk, first row of it, rows, these in group_) for the parts of a group that see the tile.
  template <typename F>
  void for_each_part(int row, const F& f) {
    const int end = std::min(block_.rows, row + kGroup);
    for (int from = row; from < end;) {
      const int until = std::min<int>(end, round_up(from + 1, kUnitRows));
      const int c = chunk_at_[from / kUnitRows];
      if (c >= 0) f(c, from % kUnitRows, until - from, group_ + (from - row) * kTile);
      from = until;
    }
  }

  // Until the chunk's scores are there, its weights may be written, and its rows have what earlier tiles
  // add to them, which move_reference() may rescale.
  void await(int c) {
    if (c <= awaited_) return;
    awaited_ = c;
    finish_product(scores_of(c));
    if (c >= 2) finish_product(values_of(c - 2));
    if (c >= 1 && places_[c - 1].from == places_[c].from) finish_product(values_of(c - 1));
    unit_.put(product_);
  }
  void finish_product(int number) {
    while (number_ <= number) step();
  }
  void narrow(int c, int row, int count, const float* from) {
    const int64_t depth = TileKeys(block_, places_[c].t).depth;
    unit_.narrow(count, depth, from, kTile, weights(c) + row * depth, depth);
  }
  void finish(int c) {
    const auto [t, from] = places_[c];
    const int64_t depth = TileKeys(block_, t).depth, rows = end_of(from) - from;
    std::fill_n(weights(c) + rows * depth, (kUnitRows - rows) * depth, uint16_t{0});
    finished_ = c + 1;
    if (left_ == 0) begin_product();
  }

  void next_product() override {
    ++number_;
    begin_product();
  }
  // Nothing where its operands are not there yet.
  void begin_product() {
    if (number_ > values_of(count_ - 1)) return;
    product_.fresh = true;
    if (number_ < 2 || number_ % 2 == 0) {
      begin_scores(number_ < 2 ? number_ : number_ / 2 + 1);
    } else {
      begin_values((number_ - 3) / 2);
    }
  }
  void begin_scores(int c) {
    if (c >= count_) return next_product();
    if (finished_ < c - 1) return;
    const auto [t, from] = places_[c];
    product_.K = product_.lda = block_.Dq;
    product_.a = block_.narrow_q + from * block_.Dq;
    product_.b = tiles_[t - first_].pairs.kt;
    product_.c = scores(c);
    product_.ldb = product_.ldc = kTile;
    product_.accumulate = false;
    left_ = static_cast<int>(TileKeys(block_, t).columns / kUnitRows);
  }
  void begin_values(int c) {
    if (block_.Dvp == 0) return next_product();
    if (finished_ <= c) return;
    const auto [t, from] = places_[c];
    const KeyTile& tile = tiles_[t - first_];
    if (!tile.v_finite) {
      unit_.put(product_);
      add_values(block_, state_, tile, t, from, end_of(from), weights(c));
      return next_product();
    }
    product_.K = product_.lda = TileKeys(block_, t).depth;
    product_.a = weights(c);
    product_.b = tile.pairs.v;
    product_.c = state_.o + from * block_.Dvp;
    product_.ldb = product_.ldc = block_.Dvp;
    product_.accumulate = true;
    left_ = static_cast<int>(block_.Dvp / kUnitRows);
  }

  Block& block_;
  ForwardState& state_;
  const KeyTile* tiles_;
  int64_t first_;
  Place places_[kTilesAtATime * kChunks];  // of the chunks
  int chunk_at_[kChunks];                  // of the tile that is weighed; -1: no row sees it
  int count_ = 0;                          // of the chunks
  int finished_ = 0;                       // chunks whose weights are there
  int awaited_ = -1;                       // the last chunk
  int number_ = 0;                         // of the product
  alignas(64) float scores_[2 * kUnitRows * kTile];
  alignas(64) uint16_t weights_[2 * kUnitRows * kTile];
  alignas(64) float group_[kGroup * kTile] = {};
};

}  // namespace

void forward(Block& block, ForwardState& state, const KeyTile* tiles, int64_t first,
             int64_t count) {
  const MatrixUnit& unit = *block.kernels->unit;
  const FloatMode flush(kFlushDenormals);  // the products do, and vscalefps is slow with them
  unit.begin();
  // A single tile leaves too little to be done beside its softmax.
  if (unit.multiply != nullptr && count > 1) {
    Beside(block, state, tiles, first, count).run();
  } else {
    InTurn rows(block, state);
    for (int64_t t = first; t < first + count; ++t) rows.run(tiles[t - first], t);
  }
  unit.end();
}

}  // namespace relpos::bfloat16

namespace relpos {

Kernels with_unit(Kernels kernels, const MatrixUnit& unit) {
  kernels.name = unit.name;
  kernels.unit = &unit;
  kernels.forward = bfloat16::forward;
  kernels.backward = bfloat16::backward;
  return kernels;
}

}  // namespace relpos
