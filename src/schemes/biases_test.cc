// Golden numbers and refusals of the biases and tables that are given by formulas.
#include <gtest/gtest.h>

#include <cmath>

#include "testing/schemes.h"

namespace relpos {
namespace {

using plain::error_of;
using plain::Made;

TEST(Sandwich, GoldenNumbers) {
  Made made("sandwich", {{"heads", int64_t{8}}});
  made.parameters()[0].store(0, 1.0);  // 8 h / heads of the first head
  made.distances = {-100, 100};
  const DistanceBias bias = made.lower(8).biases.at(0);
  const std::pair<int64_t, double> golden[] = {
      {0, 0.0}, {1, -1.446619}, {2, -5.201993}, {10, -19.340906}, {100, -33.318914}};
  for (const auto& [distance, number] : golden) {
    EXPECT_NEAR(plain::bias(bias, 0, distance), number, 1e-6);
    EXPECT_NEAR(plain::bias(bias, 0, -distance), number, 1e-6);
  }
}

TEST(Fire, RefusesQueriesBeyondItsThreshold) {
  const Part part = make_part(*find_scheme("fire"), {{"heads", int64_t{2}}, {"init_L", 50.0}});
  std::vector<Tensor> tensors;
  std::vector<TensorView> views;
  for (const ParameterSpec& spec : part.specs()) {
    tensors.emplace_back(DType::kFloat64, spec.shape);
    views.push_back(tensors.back().view());
    for (int64_t n = 0; n < views.back().numel(); ++n) views.back().store(n, 1.0);
  }
  const std::vector<bool> wants(views.size(), false);
  CallSizes sizes;
  sizes.last_query = 50;
  part.recipe->bind({sizes, views, wants});
  sizes.last_query = 51;
  EXPECT_NE(error_of([&] {
              part.recipe->bind({sizes, views, wants});
            }).find("|L_multiplier| init_L = 50, and this call has query 51"),
            std::string::npos);
}

TEST(Beit, ClassTokenHasRowsOfItsOwn) {
  const Made made("beit", {{"heads", int64_t{1}}, {"window", std::vector<double>{2, 3}}});
  const DistanceBias bias = made.lower(1).biases.at(0);
  const Part part = make_part(*find_scheme("beit"),
                              {{"heads", int64_t{1}}, {"window", std::vector<double>{2, 3}}});
  for (int64_t i = 0; i < 7; ++i) {
    for (int64_t j = 0; j < 7; ++j) {
      const int64_t delta = part.recipe->place_key(j) - part.recipe->place(i);
      const int64_t y = (i - 1) / 3 - (j - 1) / 3, x = (i - 1) % 3 - (j - 1) % 3;
      const int64_t row = i == 0 && j == 0 ? 17 : i == 0 ? 15 : j == 0 ? 16 : (y + 1) * 5 + x + 2;
      EXPECT_EQ((*bias.map)(delta), row) << i << " " << j;
    }
  }
}

TEST(Shaw, AsymmetricTablesAndTablesWithMargins) {
  const auto row = [](const OptionValues& own, int64_t delta) {
    OptionValues all = own;
    all.emplace_back("head_dim", int64_t{2});
    all.emplace_back("values", false);
    return Made("shaw", all).lower(1).row_tables.at(0).map(delta);
  };
  const OptionValues bert = {
      {"max_distance", int64_t{64}}, {"left", int64_t{64}}, {"right", int64_t{8}}};
  EXPECT_EQ(row(bert, -100), 0);
  EXPECT_EQ(row(bert, 0), 64);
  EXPECT_EQ(row(bert, 9), 72);
  const OptionValues granite = {
      {"max_distance", int64_t{200}}, {"rows", int64_t{1025}}, {"distance", "query-key"}};
  EXPECT_EQ(row(granite, -300), 712);
  EXPECT_EQ(row(granite, 1), 511);
  EXPECT_NE(
      error_of([&] { row({{"max_distance", int64_t{9}}, {"rows", int64_t{18}}}, 0); }).find("rows"),
      std::string::npos);
}

TEST(ALiBi, SidesOfTheirOwn) {
  const Made made(
      "alibi",
      {{"heads", int64_t{2}}, {"sides", "own"}, {"slopes", std::vector<double>{1, 2, 0.25, 0}}});
  EXPECT_EQ(made.specs()[0].shape, (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(made.specs()[0].init.values, (std::vector<double>{1, 2, 0.25, 0}));
  EXPECT_NE(error_of([] {
              Made("alibi", {{"heads", int64_t{2}}, {"sides", "own"}, {"symmetric", false}});
            }).find("sides"),
            std::string::npos);
}

}  // namespace
}  // namespace relpos
