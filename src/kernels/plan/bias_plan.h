// Biases of distances and of keys, written out for a call: tables and slopes over the distances that occur,
// key biases over the keys.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/workspace.h"
#include "kernels/plan/coordinate_tiles.h"
#include "kernels/plan/distance_tables.h"
#include "kernels/plan/row_shift.h"

namespace relpos {

class Plan;

// The table of a distance bias, or its slopes: a term that has both has two of these.
struct BiasPlan {
  int64_t term = 0;     // of Terms::biases
  bool sloped = false;  // read at a distance less the shift of its row (row_shift.h)
  ClassWindow window;   // without classes where sloped
  Buffer<float> cells;  // [H, kPad + width + kPad] times log2(e); empty: nothing read by distance
  const CoordinateTiles* at = nullptr;  // what it is read by; null: positions
  Buffer<float> peaks;  // [H, peaks_per_head]: the largest of each kTile cells, where tiles skip
  bool by_tiles =
      false;          // few queries read a wide table: each worker writes what the next tiles read
  bool ramp = false;  // slopes are evaluated pair by pair in every block, not expanded

  int64_t row_size() const noexcept { return window.width + 2 * kPad; }
  int64_t peaks_per_head() const noexcept { return (row_size() + kTile - 1) / kTile; }
};

std::vector<BiasPlan> expand_biases(const Problem& p, std::pair<int64_t, int64_t> range,
                                    const CoordinateList& coordinates, const Shifts& shifts,
                                    bool direct, Workspace& memory);
void expand_key_biases(Plan& plan, Workspace& memory);
// The largest of each kTile cells, and true, where a bias falls so far that tiles may be skipped.
bool find_peaks(const Plan& plan, std::vector<BiasPlan>& biases, Workspace& memory);

}  // namespace relpos
