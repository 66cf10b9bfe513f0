#include <gtest/gtest.h>

#include "testing/schemes.h"

namespace relpos {
namespace {

using plain::error_of;
using plain::Made;

constexpr int64_t kHeads = 2, kHeadDim = 3;

std::vector<std::pair<std::string, OptionValue>> options(int64_t length, bool per_head,
                                                         bool bidirectional) {
  std::vector<std::pair<std::string, OptionValue>> given = {
      {"max_length", length}, {"head_dim", kHeadDim}, {"bidirectional", bidirectional}};
  if (per_head) given.emplace_back("heads", kHeads);
  return given;
}

// Section 3.4 of the paper: distance j - i has row max_length - 1 + j - i; no row, no term.
TEST(MusicTransformer, RowsAndGradientsAreThePapers) {
  const Grid grid{6, 10, 3};
  for (const int64_t length : {1, 4, 30}) {
    for (const bool per_head : {false, true}) {
      for (const bool bidirectional : {false, true}) {
        const Made music("music_transformer", options(length, per_head, bidirectional));
        const int64_t rows = bidirectional ? 2 * length - 1 : length;
        const TensorView& table = music.parameters()[0];
        ASSERT_EQ(table.numel(), (per_head ? kHeads : 1) * rows * kHeadDim);
        const Terms terms = music.lower(kHeads, kHeadDim);
        const RowTable& term = terms.row_tables[0];
        std::vector<double> expected(static_cast<size_t>(table.numel()), 0.0);
        for (int64_t h = 0; h < kHeads; ++h) {
          for (int64_t i = 0; i < grid.queries; ++i) {
            for (int64_t j = 0; j < grid.keys; ++j) {
              const int64_t delta = j - grid.q_offset - i;
              const int64_t row = length - 1 + delta;
              if (row < 0 || row >= rows) {
                ASSERT_EQ(term.map(delta), ClassMap::kNone);
                continue;
              }
              for (int64_t c = 0; c < kHeadDim; ++c) {
                const int64_t place = ((per_head ? h : 0) * rows + row) * kHeadDim + c;
                ASSERT_EQ(plain::element(term.table, h, term.map(delta), c), table.load(place));
                expected[static_cast<size_t>(place)] += plain::weight(h, i, j, c);
              }
            }
          }
        }
        EXPECT_EQ(music.pull_back(plain::weighted_gradients(terms, kHeads, grid))[0], expected);
      }
    }
  }
}

TEST(MusicTransformer, Parameter) {
  const ParameterSpec spec = Made("music_transformer", options(16, true, false)).specs()[0];
  EXPECT_EQ(spec.name, "Er");
  EXPECT_EQ(spec.shape, (std::vector<int64_t>{kHeads, 16, kHeadDim}));
  EXPECT_EQ(spec.init.kind, Init::Kind::kNormal);
  EXPECT_DOUBLE_EQ(spec.init.deviation, 1 / std::sqrt(3.0));
}

TEST(MusicTransformer, Refuses) {
  EXPECT_NE(
      error_of([] { Made("music_transformer", options(0, false, false)); }).find("max_length"),
      std::string::npos);
  const Made music("music_transformer", options(4, true, false));
  EXPECT_NE(error_of([&] { music.lower(3, kHeadDim); }).find("heads"), std::string::npos);
  EXPECT_NE(error_of([&] { music.lower(2, 8); }).find("head_dim"), std::string::npos);
}

}  // namespace
}  // namespace relpos
