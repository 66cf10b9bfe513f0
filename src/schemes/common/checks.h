// Options and sizes that many schemes share, checked with one wording.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "relpos/scheme.h"

namespace relpos::common {

// Sums and doubles of sizes up to this stay exact in int64 and in double.
inline constexpr int64_t kLargestSize = int64_t{1} << 48;
// Of heads and of a head's dims: some schemes compute a number for each when they are made.
inline constexpr int64_t kLargestHeads = int64_t{1} << 20;

// The option as a size; throws Error naming scheme and option below `least` or above the largest.
int64_t size_option(const char* scheme, const OptionMap& options, const char* name,
                    int64_t least = 1);

// Throws unless the call has what the scheme was made for; call_has == 0: the call does not say.
void check_fits(const char* scheme, const char* option, int64_t made_for, int64_t call_has);

// [rows, columns], or [heads, rows, columns] where the option `heads` is given. The number of
// elements is checked against overflow.
std::vector<int64_t> table_shape(const char* scheme, const OptionMap& options, int64_t rows,
                                 int64_t columns);

// sums += gradient, where a gradient was wanted.
void add_into(std::vector<double>& sums, const std::vector<double>& gradient);

}  // namespace relpos::common
