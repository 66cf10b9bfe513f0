// One coordinate of the tokens of a call, for terms that are read by it instead of by positions.
#pragma once

#include <cstdint>
#include <list>
#include <utility>

#include "base/workspace.h"
#include "kernels/problem.h"

namespace relpos {

class CoordinateTiles {
 public:
  // How the keys of a tile stand: one after another, all at one place, at a few, or anyhow.
  enum Kind : uint8_t { kRun, kFlat, kFew, kScattered };
  // The places of a kFew tile, in the order of their first keys, and the keys of each as bits.
  struct Places {
    static constexpr int kMost = 8;
    int count = 0;
    int32_t at[kMost];
    uint64_t keys[kMost];
  };

  CoordinateTiles(const Coordinates& at, int axis, const Problem& p, Workspace& memory);

  // Distances that occur, masks aside.
  std::pair<int64_t, int64_t> range() const noexcept { return range_; }
  // Lowest and highest of the keys.
  std::pair<int64_t, int64_t> key_range() const noexcept { return key_range_; }
  Kind kind(int64_t b, int64_t t) const noexcept {
    return static_cast<Kind>(kinds_[(k_rows_ == 1 ? 0 : b) * tiles_ + t]);
  }
  // The coordinates of the kTile keys of tile t; those past the last key go on as the tile does.
  const int32_t* keys(int64_t b, int64_t t) const noexcept {
    return keys_.get() + ((k_rows_ == 1 ? 0 : b) * tiles_ + t) * kTile;
  }
  const Places& places(int64_t b, int64_t t) const noexcept {
    return places_[(k_rows_ == 1 ? 0 : b) * tiles_ + t];
  }
  // The coordinates of the queries of a batch row.
  const int32_t* queries(int64_t b) const noexcept {
    return queries_.get() + (q_rows_ == 1 ? 0 : b) * lengths_;
  }

 private:
  int64_t q_rows_, k_rows_, lengths_, tiles_;
  Buffer<int32_t> queries_, keys_;  // [rows, Lq], [rows, tiles, kTile]
  Buffer<uint8_t> kinds_;           // [rows, tiles]
  Buffer<Places> places_;           // [rows, tiles], of kFew tiles
  std::pair<int64_t, int64_t> range_{0, 0}, key_range_{0, 0};
};

// The coordinates of all terms of a call, each of them once.
class CoordinateList {
 public:
  CoordinateList(const Problem& p, Workspace& memory);

  // What a term is read by; null: positions.
  template <typename Term>
  const CoordinateTiles* of(const Term& term) const noexcept {
    for (const Own& own : all_) {
      if (own.coordinates == term.coordinates.get() && own.axis == term.axis) return &own.tiles;
    }
    return nullptr;
  }

 private:
  struct Own {
    const Coordinates* coordinates;
    int axis;
    CoordinateTiles tiles;
  };
  std::list<Own> all_;
};

}  // namespace relpos
