// The positions of a call's tokens.
#pragma once

#include <cstdint>
#include <vector>

namespace relpos {

// Consecutive positions are a start for each batch row; explicit ones are arrays. Either may be shared
// by the batch (one row).
struct TokenPositions {
  bool consecutive = true;
  int64_t q_rows = 1, k_rows = 1;  // 1 or B
  std::vector<int64_t> q, k;       // starts [rows], or positions [rows, L]
  int64_t queries = 0, keys = 0;

  int64_t query(int64_t b, int64_t i) const noexcept {
    const int64_t row = q_rows == 1 ? 0 : b;
    return consecutive ? q[row] + i : q[row * queries + i];
  }
  int64_t key(int64_t b, int64_t j) const noexcept {
    const int64_t row = k_rows == 1 ? 0 : b;
    return consecutive ? k[row] + j : k[row * keys + j];
  }
  // True where no two batch rows differ.
  bool shared() const noexcept { return q_rows == 1 && k_rows == 1; }
};

}  // namespace relpos
