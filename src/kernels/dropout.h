// Dropout as a pure function of (seed, b, h, i, j): the same in every path, tile order and thread.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace relpos {

class Dropout {
 public:
  Dropout() = default;
  Dropout(double p, uint64_t seed)
      : active_(p > 0.0),
        seed_(seed),
        threshold_(static_cast<uint32_t>(std::min(std::round(p * 4294967296.0), 4294967295.0))),
        keep_scale_(p < 1.0 ? 1.0 / (1.0 - p) : 0.0) {}

  bool active() const noexcept { return active_; }
  // What a kept weight is multiplied by, 1 / (1 - p).
  double keep_scale() const noexcept { return keep_scale_; }
  uint32_t threshold() const noexcept { return threshold_; }

  // The two words of a row that mix with the key's index; `block` = j >> 32.
  struct RowKey {
    uint32_t a, b;
  };
  RowKey row_key(int64_t batch, int64_t head, int64_t i, int64_t block) const noexcept {
    uint64_t x = seed_;
    for (int64_t part : {batch, head, i, block}) {
      x = mix(x + 0x9E3779B97F4A7C15ULL + static_cast<uint64_t>(part));
    }
    return {static_cast<uint32_t>(x), static_cast<uint32_t>(x >> 32)};
  }
  static uint32_t hash(RowKey key, uint32_t j) noexcept {
    uint32_t u = j * 0x9E3779B9U + key.a;
    u ^= u >> 16;
    u *= 0x7FEB352DU;
    u ^= u >> 15;
    u += key.b;
    u *= 0x846CA68BU;
    u ^= u >> 16;
    return u;
  }
  bool keeps(RowKey key, int64_t j) const noexcept {
    return hash(key, static_cast<uint32_t>(j)) >= threshold_;
  }

 private:
  // splitmix64 (Steele, Lea, Flood 2014).
  static uint64_t mix(uint64_t x) noexcept {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
    return x ^ (x >> 31);
  }

  bool active_ = false;
  uint64_t seed_ = 0;
  uint32_t threshold_ = 0;
  double keep_scale_ = 1.0;
};

}  // namespace relpos
