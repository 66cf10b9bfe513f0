// The products of a block's rows with the keys of a tile, as weigh_narrow() takes them from a driver.
#pragma once

#include <cstdint>

#include "kernels/block/matrix_unit.h"

namespace relpos {

// weigh_narrow() goes through the rows in order: through all groups, or, where it finds every key seen by
// every row, through all chunks of kUnitRows rows.
class ProductRows {
 public:
  // The products [kGroup, kTile] of a group's rows, to become weights in place.
  virtual float* group(int row) = 0;
  // They have become weights, after dropout, 0 where hidden.
  virtual void weighed_group(int row) = 0;

  // The products [kUnitRows, kTile] of a chunk's rows, to become weights in place or, in bfloat16 and as
  // far apart, in `rounded`.
  struct Chunk {
    float* products;
    uint16_t* rounded;
  };
  virtual Chunk chunk(int row) = 0;
  virtual void weighed_chunk(int row, bool rounded) = 0;

  // A moment, between rows of a chunk, to hand the unit its next instructions, which run beside the
  // softmax.
  void between_rows() {
    for (int n = 0; n < each_time_ && left_ > 0; ++n) step();
  }

 protected:
  explicit ProductRows(const MatrixUnit& unit) : unit_(unit) {}
  ~ProductRows() = default;

  void step() {
    unit_.multiply(product_);
    if (--left_ == 0) next_product();
  }
  virtual void next_product() {}

  const MatrixUnit& unit_;
  TileProduct product_;
  int left_ = 0;       // tiles of the product that can be had now
  int each_time_ = 1;  // tiles between rows
};

}  // namespace relpos
