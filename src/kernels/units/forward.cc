// The forward pass of a block over tiles whose products a unit computes.
#include <algorithm>
#include <cmath>

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
  void next_product() override {}

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
// at chunk c, the unit multiplies chunk c + 1 with its keys, then the weights of chunk c - 1 with their
// values. Two chunks of scores and two of weights are kept: with more they leave the nearest cache.
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
        if (sees(block, from, end_of(from), t)) chunks_[count_++] = {t, from};
      }
    }
    // Of a chunk's tiles, one or more in each of the moments between two rows and the next two.
    const int64_t products = (kTile + block.Dvp) / kUnitRows, moments = kUnitRows / 2;
    each_time_ = static_cast<int>((products + moments - 1) / moments);
  }

  void run() {
    begin_product();
    for (int chunk = 0; chunk < count_;) {
      const int64_t t = chunks_[chunk].t;
      std::fill_n(chunk_of_, kChunks, -1);
      for (; chunk < count_ && chunks_[chunk].t == t; ++chunk) {
        chunk_of_[chunks_[chunk].from / kUnitRows] = chunk;
      }
      block_.kernels->weigh_narrow(block_, state_, tiles_[t - first_], t, *this);
    }
    while (number_ <= 2 * count_ && count_ > 0) step();
    unit_.put(product_);
  }

  Chunk chunk(int row) override {
    const int chunk = chunk_of_[row / kUnitRows];
    await(chunk);
    return {scores_of(chunk), weights_of(chunk)};
  }
  void weighed_chunk(int row, bool rounded) override {
    const int chunk = chunk_of_[row / kUnitRows];
    if (!rounded) narrow(chunk, 0, end_of(row) - row, scores_of(chunk));
    finish(chunk);
  }

  // The rows of two chunks are brought together.
  float* group(int row) override {
    for_each_part(row, [&](int chunk, int first, int count, float* rows) {
      await(chunk);
      std::copy_n(scores_of(chunk) + first * kTile, count * kTile, rows);
    });
    return group_;
  }
  void weighed_group(int row) override {
    for_each_part(row, [&](int chunk, int first, int count, const float* rows) {
      narrow(chunk, first, count, rows);
      const int end = chunks_[chunk].from + first + count;
      if (end % kUnitRows == 0 || end >= block_.rows) finish(chunk);
    });
  }

 private:
  static constexpr int kChunks = kRows / kUnitRows;
  struct Place {
    int64_t t;
    int from;
  };

  int end_of(int from) const { return std::min<int>(block_.rows, from + kUnitRows); }
  float* scores_of(int chunk) { return scores_ + chunk % 2 * kUnitRows * kTile; }
  uint16_t* weights_of(int chunk) { return weights_ + chunk % 2 * kUnitRows * kTile; }

  // Calls f(chunk, first row of it, rows, these in group_) for the parts of a group that see the tile.
  template <typename F>
  void for_each_part(int row, const F& f) {
    const int end = std::min(block_.rows, row + kGroup);
    for (int from = row; from < end;) {
      const int until = std::min<int>(end, round_up(from + 1, kUnitRows));
      const int chunk = chunk_of_[from / kUnitRows];
      if (chunk >= 0) f(chunk, from % kUnitRows, until - from, group_ + (from - row) * kTile);
      from = until;
    }
  }

  // Until the chunk's scores are there, its weights may be written, and its rows have what earlier tiles
  // add to them, which move_reference() may rescale.
  void await(int chunk) {
    if (chunk <= awaited_) return;
    awaited_ = chunk;
    const bool again = chunk > 0 && chunks_[chunk - 1].from == chunks_[chunk].from;
    finish_product(std::max({0, 2 * chunk - 1, again ? 2 * chunk : 2 * chunk - 2}));
    unit_.put(product_);
  }
  void finish_product(int number) {
    while (number_ <= number) step();
  }
  void narrow(int chunk, int row, int count, const float* weights) {
    const int64_t depth = TileKeys(block_, chunks_[chunk].t).depth;
    unit_.narrow(count, depth, weights, kTile, weights_of(chunk) + row * depth, depth);
  }
  void finish(int chunk) {
    const auto [t, from] = chunks_[chunk];
    const int64_t depth = TileKeys(block_, t).depth, rows = end_of(from) - from;
    std::fill_n(weights_of(chunk) + rows * depth, (kUnitRows - rows) * depth, uint16_t{0});
    finished_ = chunk + 1;
    if (left_ == 0) begin_product();
  }

  // Product 0 makes the scores of chunk 0; 2 c - 1 those of chunk c, and 2 c + 2 adds its values.
  void next_product() override {
    ++number_;
    begin_product();
  }
  void begin_product() {
    if (number_ == 2 * count_ - 1) ++number_;  // of no chunk
    if (number_ > 2 * count_) return;
    product_.fresh = true;
    if (number_ == 0 || number_ % 2 == 1) {
      begin_scores((number_ + 1) / 2);
    } else {
      begin_values(number_ / 2 - 1);
    }
  }
  void begin_scores(int chunk) {
    if (chunk >= count_ || finished_ < chunk - 1) return;
    const auto [t, from] = chunks_[chunk];
    product_.K = product_.lda = block_.Dq;
    product_.a = block_.narrow_q + from * block_.Dq;
    product_.b = tiles_[t - first_].pairs.kt;
    product_.c = scores_of(chunk);
    product_.ldb = product_.ldc = kTile;
    product_.accumulate = false;
    left_ = static_cast<int>(TileKeys(block_, t).columns / kUnitRows);
  }
  void begin_values(int chunk) {
    if (finished_ <= chunk) return;
    const auto [t, from] = chunks_[chunk];
    const KeyTile& tile = tiles_[t - first_];
    if (!tile.v_finite) {
      unit_.put(product_);
      add_values(block_, state_, tile, t, from, end_of(from), weights_of(chunk));
      next_product();
      return;
    }
    product_.K = product_.lda = TileKeys(block_, t).depth;
    product_.a = weights_of(chunk);
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
  Place chunks_[kTilesAtATime * kChunks];
  int chunk_of_[kChunks];  // of the tile that is weighed; -1: none of the rows sees it
  int count_ = 0;
  int finished_ = 0;  // chunks whose weights are there
  int awaited_ = -1;
  int number_ = 0;  // of the product
  alignas(64) float scores_[2 * kUnitRows * kTile];
  alignas(64) uint16_t weights_[2 * kUnitRows * kTile];
  alignas(64) float group_[kGroup * kTile] = {};
};

}  // namespace

void forward(Block& block, ForwardState& state, const KeyTile* tiles, int64_t first,
             int64_t count) {
  const MatrixUnit& unit = *block.kernels->unit;
  unit.begin();
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
