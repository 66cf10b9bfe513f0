// The numbers of a table that has one for each class, at the cells of a window.
#pragma once

#include <cstdint>

#include "kernels/plan/distance_tables.h"

namespace relpos {

// In log2 units of scores, or as they are.
enum class CellUnit { kLog2, kNatural };

// cells[n] = table[head, class of cell first + n of the window, or left or right of it] times its
// multiplier, in double and rounded once; 0 where there is no class. The table is [H, M].
void write_cells(const ClassWindow& window, const TermData& table, int64_t head, int64_t first,
                 int64_t count, CellUnit unit, float* cells);

// The numbers of the same cells before their multiplier, where they lie one after another in a row of floats
// of the table, in ascending order; else null. No cell lies outside of the window.
const float* cells_in_place(const ClassWindow& window, const TermData& table, int64_t head,
                            int64_t first);

}  // namespace relpos
