// The vectors that meet the rows of a table: queries as they were given, or a factor of the call. Of
// RowTables and PairRowTables.
#pragma once

#include <vector>

#include "kernels/terms/term.h"

namespace relpos {

// to [kRows, padded rank] = (the factor, or `queries` [kRows, Dp] where it is not given, plus what the
// table adds) times the table's scale and log2(e).
void load_row_factors(const Plan& plan, const TablePlan& table, const TermData& factor,
                      const Block& block, const float* queries, float* to);

// Sends the gradients da [padded rank] of what a row has read, less the table's scale, to its query's dq
// [Dp], or to the factor's gradient, which may be empty.
void send_row_factor(const Plan& plan, const TablePlan& table, const TermData& factor,
                     const Block& block, int row, const float* da, float* dq,
                     std::vector<double>& to);

}  // namespace relpos
