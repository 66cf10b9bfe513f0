// The rows of a block: rotated queries, and what its terms add to their scores.
#pragma once

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "kernels/drive/narrow_rows.h"
#include "kernels/plan/tile_skip.h"
#include "kernels/terms/every_term.h"

namespace relpos {

// One worker's. Constructed once per call, reused for every block.
class QueryBlock {
 public:
  QueryBlock(const Plan& plan, Workspace& memory);

  Block block;

  void begin(int64_t batch);
  // Queries [first, end) of a head, one at least; at most kRows since begin().
  void add_rows(int64_t h, int64_t first, int64_t end);
  // Loads and rotates the queries of all rows, and attaches what score terms read.
  void load();
  // [first, last) tiles that any row sees. After load().
  std::pair<int64_t, int64_t> tile_range() const;
  // Calls f(from, until) for runs of the tiles of [first, end) that a row may see, in ascending order. After
  // load().
  template <typename F>
  void over_seen(int64_t first, int64_t end, F&& f) const {
    if (!plan_.p.visible.tiles.given()) return f(first, end);
    for (int64_t from = next_seen(first); from < end;) {
      int64_t until = from + 1;
      while (until < end && next_seen(until) == until) ++until;
      f(from, until);
      from = next_seen(until);
    }
  }
  int padded_rows() const noexcept { return static_cast<int>(round_up(block.rows, kGroup)); }

  // Writes dense weights or scores of tiles [t, t + count), as of Kernels::emit().
  void emit(const KeyTile* tiles, int64_t t, int64_t count, const TensorView& dense,
            const float* reference, const float* inverse_sum);

 protected:
  // Calls kernel(tiles, t, count) for tiles [t, t + count) whose weights may not all underflow against
  // `reference` (null: for all), with the terms brought to them. `count` is at most kTilesAtATime.
  template <typename F>
  void over_tiles(const KeyTile* tiles, int64_t t, int64_t count, const float* reference,
                  F&& kernel) {
    const int64_t step = by_tile_ ? 1 : count;
    for (int64_t n = 0; n < count; n += step) {
      if (reference != nullptr && skip_.skips(block, tiles[n], t + n, reference)) continue;
      terms_.for_each([&]<typename Kind>(Kind& kind) { kind.before_tile(block, tiles[n]); });
      decay_queries(tiles[n]);
      kernel(tiles + n, t + n, step);
    }
  }

  // Brings the terms, and the words of a mask by tiles, to tiles [t, t + count).
  void bring(int64_t t, int64_t count) {
    if (plan_.p.visible.tiles.given()) bring_words(t, count);
    terms_.for_each([&]<typename Kind>(Kind& kind) { kind.before(block, t, count); });
  }

  const Plan& plan_;
  WorkerTerms terms_;
  TileSkip skip_;
  // Where a rotation decays: the queries scaled for a tile [kRows, Dp], and by what [Dp].
  Buffer<float> decayed_, decay_;
  Buffer<float> raw_;  // the queries as they are [kRows, Dp]

 private:
  // Rows of one block of a mask by tiles: `offset` is the first row's place in it.
  struct MaskRows {
    int first, count;
    int64_t offset;
    std::span<const SeenTiles::Entry> entries;
  };

  // What rows see is that of the same queries of any head, and, where batch rows share positions and
  // windows, of any batch row.
  struct SeenAs {
    int64_t batch = 0, first = 0, end = 0;  // queries [first, end); none: of no rows
  };

  bool see_as_before(int64_t first, int64_t end) const;
  // The rows of each block of a mask by tiles.
  void find_mask_rows();
  // The first tile from t on that a row may see by a mask of tiles, or one past the last.
  int64_t next_seen(int64_t t) const;
  void bring_words(int64_t t, int64_t count);
  // The words of tile t for all rows, in `own` unless they lie side by side; null: all ones.
  const uint64_t* words_of(int64_t t, uint64_t* own) const;
  // The keys and distances that rows see, and the positions of the rows of each group.
  void find_range();
  void narrow_range();
  void load_queries();
  void decay_queries(const KeyTile& tile);

  const bool by_tile_;        // something is done before or after each tile
  SeenAs seen_as_;            // the rows of the block, where they are those of one add_rows()
  bool range_found_ = false;  // by a block before, of the same rows
  int64_t seen_from_ = 0, seen_to_ = 0;  // from the first to past the last key that a row sees
  std::vector<MaskRows> mask_rows_;
  Buffer<uint64_t> words_;       // [kTilesAtATime, kRows], of several blocks of a mask
  Buffer<float> q_;              // [kRows, Dp]
  bfloat16::NarrowRows narrow_;  // not scaled, but where a rotation decays
};

}  // namespace relpos
