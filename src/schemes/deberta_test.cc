#include <gtest/gtest.h>

#include "testing/schemes.h"

namespace relpos {
namespace {

using plain::error_of;
using plain::Made;

int64_t row(const Terms& terms, int64_t n) { return terms.row_tables[0].map(-n); }

// Buckets of DeBERTa-v2's make_log_bucket_position(256, 512), printed for pos_q - pos_k = n.
TEST(Deberta, GoldenBuckets) {
  const Made made("deberta", {{"heads", int64_t{2}}, {"head_dim", int64_t{3}}});
  const Terms terms = made.lower(2, 3);
  const std::pair<int64_t, int64_t> golden[] = {{0, 0},     {1, 1},     {128, 128}, {129, 129},
                                                {130, 130}, {131, 131}, {132, 131}, {136, 134},
                                                {150, 143}, {200, 169}, {256, 192}, {300, 207},
                                                {400, 233}, {500, 254}, {509, 255}, {511, 255}};
  for (const auto& [n, bucket] : golden) {
    EXPECT_EQ(row(terms, n), 256 + bucket) << n;
    EXPECT_EQ(row(terms, -n), 256 - bucket) << n;
  }
  for (const int64_t n : {int64_t{512}, int64_t{540}, int64_t{1} << 40}) {
    EXPECT_EQ(row(terms, n), 511);
    EXPECT_EQ(row(terms, -n), 0);
  }
  EXPECT_EQ(terms.row_tables[0].map.classes(), 512);
  EXPECT_EQ(terms.column_tables[0].map(-200), row(terms, 200));
}

TEST(Deberta, VersionOneHasARowForEachDistance) {
  const Made made("deberta", {{"heads", int64_t{1}},
                              {"head_dim", int64_t{2}},
                              {"buckets", int64_t{0}},
                              {"max_distance", int64_t{4}},
                              {"terms", "c2p"}});
  const Terms terms = made.lower(1, 2);
  EXPECT_TRUE(terms.column_tables.empty());
  for (int64_t n = -9; n <= 9; ++n) EXPECT_EQ(row(terms, n), std::clamp<int64_t>(n + 4, 0, 7)) << n;
}

TEST(Deberta, Refuses) {
  const auto error = [](int64_t buckets, int64_t far) {
    return error_of([&] {
      Made("deberta", {{"heads", int64_t{1}},
                       {"head_dim", int64_t{2}},
                       {"buckets", buckets},
                       {"max_distance", far}});
    });
  };
  EXPECT_NE(error(7, 512).find("deberta: buckets: expected 0 or an even number"),
            std::string::npos);
  EXPECT_NE(error(256, 100).find("deberta: max_distance: expected more than"), std::string::npos);
}

}  // namespace
}  // namespace relpos
