#include <gtest/gtest.h>

#include "testing/schemes.h"

namespace relpos {
namespace {

using plain::error_of;
using plain::Made;

constexpr int64_t kHeads = 2, kHeadDim = 3, kValueDim = 4;

std::vector<std::pair<std::string, OptionValue>> options(int64_t k, bool per_head,
                                                         const char* distance) {
  std::vector<std::pair<std::string, OptionValue>> given = {{"max_distance", k},
                                                            {"head_dim", kHeadDim},
                                                            {"value_dim", kValueDim},
                                                            {"distance", distance}};
  if (per_head) given.emplace_back("heads", kHeads);
  return given;
}

// Equations 3 and 4 of the paper: a_ij = w[clip(j - i, k)], rows counted from -k. The notebooks count
// from clip(i - j, k).
TEST(Shaw, RowsAndGradientsAreThePapers) {
  const Grid grid{5, 9, 2};
  for (const int64_t k : {0, 1, 3, 20}) {
    for (const bool per_head : {false, true}) {
      for (const char* distance : {"key-query", "query-key"}) {
        const Made shaw("shaw", options(k, per_head, distance));
        const Terms terms = shaw.lower(kHeads, kHeadDim, kValueDim);
        ASSERT_EQ(terms.row_tables.size(), 1U);
        ASSERT_EQ(terms.value_tables.size(), 1U);
        EXPECT_FALSE(terms.row_tables[0].scale.has_value());
        const auto sums = shaw.pull_back(plain::weighted_gradients(terms, kHeads, grid));
        for (size_t p = 0; p < 2; ++p) {
          const TensorView& table = shaw.parameters()[p];
          const int64_t columns = p == 0 ? kHeadDim : kValueDim;
          const ClassMap& map = p == 0 ? terms.row_tables[0].map : terms.value_tables[0].map;
          const TermData& data = p == 0 ? terms.row_tables[0].table : terms.value_tables[0].table;
          std::vector<double> expected(static_cast<size_t>(table.numel()), 0.0);
          for (int64_t h = 0; h < kHeads; ++h) {
            for (int64_t i = 0; i < grid.queries; ++i) {
              for (int64_t j = 0; j < grid.keys; ++j) {
                const int64_t query = grid.q_offset + i;
                const int64_t seen = distance[0] == 'k' ? j - query : query - j;
                const int64_t row = std::min(std::max(seen, -k), k) + k;
                for (int64_t c = 0; c < columns; ++c) {
                  const int64_t place = ((per_head ? h : 0) * (2 * k + 1) + row) * columns + c;
                  ASSERT_EQ(plain::element(data, h, map(j - query), c), table.load(place));
                  expected[static_cast<size_t>(place)] += plain::weight(h, i, j, c);
                }
              }
            }
          }
          EXPECT_EQ(sums[p], expected);
        }
      }
    }
  }
}

TEST(Shaw, Parameters) {
  const auto specs = Made("shaw", options(7, false, "key-query")).specs();
  ASSERT_EQ(specs.size(), 2U);
  EXPECT_EQ(specs[0].name, "key_table");
  EXPECT_EQ(specs[0].shape, (std::vector<int64_t>{15, kHeadDim}));
  EXPECT_EQ(specs[1].name, "value_table");
  EXPECT_EQ(specs[1].shape, (std::vector<int64_t>{15, kValueDim}));
  EXPECT_EQ(specs[0].init.kind, Init::Kind::kUniform);
  EXPECT_DOUBLE_EQ(specs[0].init.high, std::sqrt(6.0 / (15 + kHeadDim)));
  const auto per_head = Made("shaw", options(7, true, "key-query")).specs();
  EXPECT_EQ(per_head[0].shape, (std::vector<int64_t>{kHeads, 15, kHeadDim}));
  EXPECT_EQ(per_head[0].init.high, specs[0].init.high);
  const Made keys("shaw", {{"max_distance", int64_t{7}},
                           {"head_dim", kHeadDim},
                           {"values", false},
                           {"init", "xavier_normal"}});
  ASSERT_EQ(keys.specs().size(), 1U);
  EXPECT_EQ(keys.specs()[0].init.kind, Init::Kind::kNormal);
  EXPECT_DOUBLE_EQ(keys.specs()[0].init.deviation, std::sqrt(2.0 / (15 + kHeadDim)));
  const Terms terms = keys.lower(kHeads, kHeadDim, 99);
  EXPECT_TRUE(terms.value_tables.empty());
  EXPECT_EQ(keys.pull_back(TermGradients::zeros(terms)).size(), 1U);
}

TEST(Shaw, Refuses) {
  const Made shaw("shaw", options(2, true, "key-query"));
  EXPECT_NE(error_of([&] { shaw.lower(3, kHeadDim, kValueDim); }).find("heads"), std::string::npos);
  EXPECT_NE(error_of([&] { shaw.lower(2, 5, kValueDim); }).find("head_dim=3, the call has 5"),
            std::string::npos);
  EXPECT_NE(error_of([&] { shaw.lower(2, kHeadDim, 5); }).find("value_dim=4"), std::string::npos);
  EXPECT_NE(error_of([] { Made("shaw", options(-1, true, "key-query")); }).find("max_distance"),
            std::string::npos);
  EXPECT_NE(error_of([] {
              Made("shaw", options(int64_t{1} << 62, true, "key-query"));
            }).find("max_distance"),
            std::string::npos);
}

}  // namespace
}  // namespace relpos
