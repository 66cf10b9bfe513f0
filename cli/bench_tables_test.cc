#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "bench_cases.h"

namespace relpos::cli {
namespace {

// make_log_bucket_position(-delta, 256, 512) + 256, clamped to 512 rows, of transformers' DeBERTa v2.
const std::vector<std::pair<int64_t, int64_t>> kRows = {
    {-5000, 511}, {-1023, 511}, {-600, 511}, {-511, 511}, {-400, 489}, {-300, 463},
    {-200, 425},  {-140, 393},  {-131, 387}, {-129, 385}, {-128, 384}, {-127, 383},
    {-5, 261},    {-1, 257},    {0, 256},    {1, 255},    {64, 192},   {127, 129},
    {128, 128},   {129, 127},   {130, 126},  {150, 113},  {257, 64},   {333, 40},
    {450, 12},    {510, 1},     {511, 1},    {512, 0},    {700, 0},    {4000, 0},
};

TEST(BenchTables, ClassesAreDebertas) {
  const Scheme& scheme = row_and_column_tables();
  const OptionMap options = make_options(scheme, {});
  std::vector<Tensor> tables;
  for (const ParameterSpec& spec : scheme.parameters(options)) {
    tables.emplace_back(DType::kFloat32, spec.shape);
  }
  const std::vector<TensorView> views{tables[0].view(), tables[1].view()};
  const std::vector<bool> wants{true, true};
  Terms terms;
  scheme.lower({options, views, wants, 8, 64, 64}, terms);
  ASSERT_EQ(terms.row_tables.size(), 1U);
  ASSERT_EQ(terms.column_tables.size(), 1U);
  for (const auto& [delta, row] : kRows) {
    EXPECT_EQ(terms.row_tables[0].map(delta), row) << delta;
    EXPECT_EQ(terms.column_tables[0].map(delta), row) << delta;
  }
}

}  // namespace
}  // namespace relpos::cli
