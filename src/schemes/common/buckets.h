// Buckets of distances: exact near zero, logarithmic up to max_distance, one for all beyond.
//
// With n = -distance (one-sided: 0 for the future; two-sided: its magnitude, each sign with half of
// the buckets), s buckets a side and e = floor(s / 2):
//   bucket(n) = n                                                                      for n < e
//             = min(s - 1, floor(e + ln(n / e) / ln(max_distance / e) * (s - e)))      otherwise
// Raffel et al. 2020, section 2.1; two-sided, the future's buckets follow the past's.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "relpos/terms.h"

namespace relpos::common {

class Buckets {
 public:
  // Throws Error naming the scheme and the option that leaves the formula undefined.
  Buckets(const char* scheme, int64_t buckets, int64_t max_distance, bool bidirectional);

  int64_t per_side() const noexcept { return per_side_; }
  int64_t max_exact() const noexcept { return max_exact_; }

  // The formula's second line before floor and min; -inf at 0. With one bucket a side: 0.
  double value_if_large(int64_t n) const noexcept;
  // The exact value's whole part, as a cast to int64 gives it: int64's minimum at 0.
  //
  // The value is whole where (n / e)^(s - e) = (max_distance / e)^k: n = 16, 32, 64 for the published
  // two-sided (32, 128). A logarithm one ulp low would move those n one bucket down, so a value
  // within 1e-9 of a whole number is decided in whole numbers. The tolerance alone is not exact: of
  // all s <= 320, max_distance <= 1024 it errs at s = 73, max_distance = 905, n = 347.
  int64_t whole_if_large(int64_t n) const;

  // First n of each bucket that holds any, with the bucket, in order; bucket 0 starts at 0.
  std::vector<std::pair<int64_t, int64_t>> starts() const;
  // The class of each distance: runs between integer thresholds, no logarithm left. Distances count
  // in whole units, rounded towards 0; those from `reach` on, on either side, have no class.
  ClassMap map(int64_t unit = 1, std::optional<int64_t> reach = {}) const;

 private:
  // Whether (n / e)^(s - e) >= (max_distance / e)^k.
  bool reaches(int64_t n, int64_t k) const;

  int64_t per_side_, max_exact_, max_distance_;
  bool bidirectional_;
  double log_range_ = 0.0;  // ln(max_distance / max_exact)
};

}  // namespace relpos::common
