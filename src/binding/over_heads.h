// Numbers that are given once for all heads, where a term has them for each.
#pragma once

#include <cstdint>
#include <vector>

#include "relpos/terms.h"

namespace relpos {

// A table [1, M] read as [heads, M]; any other stays.
TermData over_heads(TermData table, int64_t heads);

// [batch, ...] of [batch, heads, ...]; empty stays empty.
std::vector<double> sum_of_heads(const std::vector<double>& all, int64_t batch, int64_t heads);

}  // namespace relpos
