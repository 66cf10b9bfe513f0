// Dropout as a function of (seed, row, column) only: the same in every path, tile order and thread.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/threefry.h"

namespace relpos {

// The key of Threefry4x32 is the seed, the batch row and the head (both below 2^32); its counter is the
// query and a number for each four columns, 64 bits each. So no two pairs of a call share a word, no two
// seeds share a key, and the word of a pair does not depend on the sizes of the call. The four words of
// a counter belong to columns 16 apart, so that neighbouring lanes are neighbouring columns.
class Dropout {
 public:
  Dropout() = default;
  Dropout(double p, uint64_t seed)
      : active_(p > 0.0),
        seed_(seed),
        threshold_(static_cast<uint32_t>(std::min(std::round(p * 4294967296.0), 4294967295.0))),
        keep_scale_(p < 1.0 ? 1.0 / (1.0 - p) : 0.0) {}

  bool active() const noexcept { return active_; }
  // The factor of a weight that is kept, 1 / (1 - p).
  double keep_scale() const noexcept { return keep_scale_; }
  // Words below it are dropped.
  uint32_t threshold() const noexcept { return threshold_; }

  Threefry4x32::Words key(int64_t batch, int64_t head) const noexcept {
    return {low(seed_), high(seed_), static_cast<uint32_t>(batch), static_cast<uint32_t>(head)};
  }
  // The words of the columns at distances of 16 from `column` on, in the same 64 columns.
  static Threefry4x32::Words counter(int64_t i, int64_t column) noexcept {
    const auto row = static_cast<uint64_t>(i);
    const auto at = static_cast<uint64_t>(column / 64 * 16 + column % 16);
    return {low(at), high(at), low(row), high(row)};
  }
  bool keeps(int64_t batch, int64_t head, int64_t i, int64_t j) const noexcept {
    const Threefry4x32::Words words = Threefry4x32::words(counter(i, j), key(batch, head));
    return words[j / 16 % 4] >= threshold_;
  }

 private:
  static uint32_t low(uint64_t x) noexcept { return static_cast<uint32_t>(x); }
  static uint32_t high(uint64_t x) noexcept { return static_cast<uint32_t>(x >> 32); }

  bool active_ = false;
  uint64_t seed_ = 0;
  uint32_t threshold_ = 0;
  double keep_scale_ = 1.0;
};

}  // namespace relpos
