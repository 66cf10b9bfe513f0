#include "schemes/common/buckets.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "testing/schemes.h"

namespace relpos {
namespace {

using common::Buckets;
using plain::error_of;

std::vector<int64_t> first_distances(int64_t buckets, int64_t max_distance, bool bidirectional) {
  std::vector<int64_t> firsts;
  for (const auto& [n, bucket] : Buckets("t5", buckets, max_distance, bidirectional).starts()) {
    EXPECT_EQ(bucket, static_cast<int64_t>(firsts.size()));
    firsts.push_back(n);
  }
  return firsts;
}

std::vector<int64_t> counting(int64_t last, std::vector<int64_t> then) {
  std::vector<int64_t> numbers;
  for (int64_t n = 0; n <= last; ++n) numbers.push_back(n);
  numbers.insert(numbers.end(), then.begin(), then.end());
  return numbers;
}

// The published configurations, as every implementation has them.
TEST(Buckets, FirstDistanceOfEachBucket) {
  EXPECT_EQ(first_distances(32, 128, false),
            counting(16, {19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113}));
  EXPECT_EQ(first_distances(32, 128, true), counting(8, {12, 16, 23, 32, 46, 64, 91}));
  EXPECT_EQ(first_distances(6, 20, false), counting(3, {6, 11}));
  EXPECT_EQ(first_distances(64, 256, true),
            counting(16, {20, 23, 27, 32, 39, 46, 54, 64, 77, 91, 108, 128, 153, 182, 216}));
}

struct Rows {
  int64_t buckets, max_distance;
  bool bidirectional;
  int64_t first;  // distance, of the buckets that follow
  std::vector<int64_t> golden;
};

TEST(Buckets, GoldenRows) {
  const Rows all[] = {
      {32, 128, true, -20, {10, 10, 10, 10, 10, 9,  9,  9,  9,  8,  8,  8,  8,  7,
                            6,  5,  4,  3,  2,  1,  0,  17, 18, 19, 20, 21, 22, 23,
                            24, 24, 24, 24, 25, 25, 25, 25, 26, 26, 26, 26, 26}},
      {6, 20, false, -14, {5, 5, 5, 5, 4, 4, 4, 4, 4, 3, 3, 3, 2, 1, 0, 0}},  // the notebooks'
      {6, 20, false, std::numeric_limits<int64_t>::max(), {0}},
      {6, 20, false, std::numeric_limits<int64_t>::min(), {5}},
      {2, 2, false, -1, {1, 0, 0}},
      {2, 2, false, -100, {1}},
      {2, 1, true, -1, {0, 0, 1}},
      {2, 1, true, -7, {0}},
      {2, 1, true, 7, {1}},
  };
  for (const Rows& rows : all) {
    const ClassMap map = Buckets("t5", rows.buckets, rows.max_distance, rows.bidirectional).map();
    EXPECT_EQ(map.classes(), rows.buckets);
    for (size_t n = 0; n < rows.golden.size(); ++n) {
      EXPECT_EQ(map(rows.first + static_cast<int64_t>(n)), rows.golden[n])
          << rows.buckets << ", " << rows.max_distance << ", from " << rows.first << ", " << n;
    }
  }
}

// floor(e + ln(n / e) / ln(md / e) (s - e)) without a logarithm: the largest k with
// n^(s - e) e^k >= md^k e^(s - e), in 128 bits.
int64_t exact_bucket(int64_t n, int64_t s, int64_t md) {
  const int64_t e = s / 2;
  if (n < e || s == 1) return s == 1 ? 0 : n;
  const auto power = [](int64_t base, int64_t exponent) {
    unsigned __int128 product = 1;
    for (int64_t i = 0; i < exponent; ++i) product *= static_cast<uint64_t>(base);
    return product;
  };
  int64_t k = 0;
  while (k < s - 1 - e && power(n, s - e) * power(e, k + 1) >= power(md, k + 1) * power(e, s - e)) {
    ++k;
  }
  return e + k;
}

// Products up to md^(s - e) e^(s - e) fit 128 bits.
TEST(Buckets, EqualTheRuleInWholeNumbers) {
  int64_t pairs = 0, differing = 0;
  for (int64_t s = 1; s <= 16; ++s) {
    for (int64_t md = s / 2 + 1; md <= 300; ++md) {
      if (std::log2(static_cast<double>(md) * 3.0 * static_cast<double>(s / 2 + 1)) *
              static_cast<double>(s - s / 2) >
          120) {
        continue;
      }
      ++pairs;
      const ClassMap past = Buckets("t5", 2 * s, md, true).map();
      for (int64_t n = 0; n <= 3 * md; ++n) {
        differing += past(-n) != exact_bucket(n, s, md);
        if (n > 0) differing += past(n) != s + exact_bucket(n, s, md);
      }
    }
  }
  EXPECT_EQ(differing, 0);
  EXPECT_GT(pairs, 3000);
}

// Distances whose value stands within 4e-10 of a whole number and is not whole (arbitrary-precision
// integers in Python): a tolerance alone puts 347 into the next bucket.
TEST(Buckets, NearWholeValuesAreDecidedExactly) {
  const Buckets below("t5", 73, 905, false), above("t5", 21, 1006, false);
  EXPECT_NEAR(below.value_if_large(347), 62, 1e-9);
  EXPECT_EQ(below.map()(-347), 61);
  EXPECT_EQ(below.map()(-348), 62);
  EXPECT_EQ(above.map()(-434), 18);
  EXPECT_EQ(above.map()(-435), 19);
}

TEST(Buckets, LargeDistancesAndManyBuckets) {
  const int64_t far = int64_t{1} << 48;
  const Buckets buckets("t5", 128, far, false);
  const ClassMap map = buckets.map();
  EXPECT_EQ(map(-far), 127);
  int64_t previous = 0;
  for (const auto& [n, bucket] : buckets.starts()) {
    EXPECT_EQ(map(-n), bucket);
    if (n > 0) {
      EXPECT_EQ(map(1 - n), previous);
    }
    previous = bucket;
  }
  EXPECT_EQ(previous, 127);
  // More buckets than distances: some hold none, the last one holds max_distance.
  const ClassMap crowded = Buckets("t5", 1000, 501, false).map();
  EXPECT_EQ(crowded(-500), 500);
  EXPECT_EQ(crowded(-501), 999);
  EXPECT_EQ(crowded.classes(), 1000);
}

TEST(Buckets, WholePartAsACastGivesIt) {
  const Buckets buckets("t5", 6, 20, false);
  const std::vector<int64_t> golden = {std::numeric_limits<int64_t>::min(), 1, 2, 3, 3, 3, 4, 4};
  for (int64_t n = 0; n < 8; ++n) {
    EXPECT_EQ(buckets.whole_if_large(n), golden[static_cast<size_t>(n)]) << n;
  }
}

TEST(Buckets, RefusesWhatLeavesTheFormulaUndefined) {
  EXPECT_NE(error_of([] { Buckets("t5", 1, 128, false); }).find("at least 2, got 1"),
            std::string::npos);
  EXPECT_NE(error_of([] { Buckets("t5", 7, 128, true); }).find("even number"), std::string::npos);
  const std::string near = error_of([] { Buckets("t5", 32, 16, false); });
  EXPECT_NE(near.find("t5: max_distance: expected more than 16"), std::string::npos) << near;
  EXPECT_EQ(error_of([] { Buckets("t5", 32, 17, false); }), "");
  EXPECT_EQ(error_of([] { Buckets("t5", 7, 128, false); }), "");
}

}  // namespace
}  // namespace relpos
