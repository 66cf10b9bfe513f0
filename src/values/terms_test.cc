#include "relpos/terms.h"

#include <gtest/gtest.h>

#include <vector>

#include "relpos/error.h"

namespace relpos {
namespace {

constexpr int64_t kMin = INT64_MIN, kMax = INT64_MAX;

std::vector<int64_t> rows(const ClassMap& map, const std::vector<int64_t>& distances) {
  std::vector<int64_t> classes;
  for (int64_t delta : distances) classes.push_back(map(delta));
  return classes;
}

void expect_constant_outside(const ClassMap& map) {
  EXPECT_EQ(map(kMin), map(map.first_distance()));
  EXPECT_EQ(map(kMax), map(map.last_distance()));
}

TEST(ClassMap, Clamp) {
  const ClassMap map = ClassMap::clamp(-2, 1);
  EXPECT_EQ(rows(map, {kMin, -3, -2, -1, 0, 1, 2, kMax}),
            (std::vector<int64_t>{0, 0, 0, 1, 2, 3, 3, 3}));
  EXPECT_EQ(map.classes(), 4);
  EXPECT_EQ(map.first_distance(), -2);
  EXPECT_EQ(map.last_distance(), 1);
  expect_constant_outside(map);
  EXPECT_EQ(rows(ClassMap::clamp(-2, 1, true), {kMin, -3, -2, -1, 0, 1, 2, kMax}),
            (std::vector<int64_t>{3, 3, 3, 2, 1, 0, 0, 0}));
}

TEST(ClassMap, ZeroOutside) {
  const ClassMap map = ClassMap::zero_outside(-2, 0);
  EXPECT_EQ(rows(map, {kMin, -3, -2, -1, 0, 1, kMax}),
            (std::vector<int64_t>{-1, -1, 0, 1, 2, -1, -1}));
  EXPECT_EQ(map.classes(), 3);
  EXPECT_EQ(map.first_distance(), -2);
  EXPECT_EQ(map.last_distance(), 0);
  EXPECT_EQ(map(map.first_distance() - 1), ClassMap::kNone);
  EXPECT_EQ(rows(ClassMap::zero_outside(-2, 0, true), {-3, -2, -1, 0, 1}),
            (std::vector<int64_t>{-1, 2, 1, 0, -1}));
}

TEST(ClassMap, Thresholds) {
  const ClassMap map = ClassMap::thresholds({-5, 0, 3}, {7, ClassMap::kNone, 2, 0});
  EXPECT_EQ(rows(map, {kMin, -6, -5, -1, 0, 2, 3, kMax}),
            (std::vector<int64_t>{7, 7, -1, -1, 2, 2, 0, 0}));
  EXPECT_EQ(map.classes(), 8);
  EXPECT_EQ(map.first_distance(), -6);
  EXPECT_EQ(map.last_distance(), 3);
  expect_constant_outside(map);
}

TEST(ClassMap, ThresholdsAtTheEnds) {
  const ClassMap everywhere = ClassMap::thresholds({}, {4});
  EXPECT_EQ(rows(everywhere, {kMin, 0, kMax}), (std::vector<int64_t>{4, 4, 4}));
  EXPECT_EQ(everywhere.classes(), 5);
  EXPECT_EQ(everywhere.first_distance(), 0);
  EXPECT_EQ(everywhere.last_distance(), 0);
  EXPECT_EQ(ClassMap::thresholds({}, {ClassMap::kNone}).classes(), 0);
  const ClassMap extreme = ClassMap::thresholds({kMin, kMax}, {0, 1, 2});
  EXPECT_EQ(rows(extreme, {kMin, kMin + 1, kMax - 1, kMax}), (std::vector<int64_t>{1, 1, 1, 2}));
  expect_constant_outside(extreme);
  // An empty run is never chosen.
  EXPECT_EQ(rows(ClassMap::thresholds({2, 2}, {0, 9, 1}), {1, 2}), (std::vector<int64_t>{0, 1}));
}

TEST(ClassMap, RunsMakeTheSameMap) {
  for (const ClassMap& map :
       {ClassMap::clamp(-2, 1), ClassMap::clamp(-2, 1, true), ClassMap::clamp(3, 3),
        ClassMap::zero_outside(-2, 0), ClassMap::zero_outside(1, 4, true),
        ClassMap::thresholds({-5, 0, 3}, {7, ClassMap::kNone, 2, 0}),
        ClassMap::thresholds({}, {4})}) {
    const auto [starts, classes] = map.runs();
    const ClassMap again = ClassMap::thresholds(starts, classes);
    for (const int64_t delta : {kMin, kMax}) EXPECT_EQ(again(delta), map(delta));
    for (int64_t delta = -7; delta <= 7; ++delta) EXPECT_EQ(again(delta), map(delta)) << delta;
  }
}

TEST(ClassMap, WidestRange) {
  const ClassMap map = ClassMap::clamp(kMin + 1, -1);
  EXPECT_EQ(map.classes(), kMax);
  EXPECT_EQ(map(kMin), 0);
  EXPECT_EQ(map(kMax), kMax - 1);
}

TEST(ClassMap, RefusesBadArguments) {
  EXPECT_THROW(ClassMap::clamp(1, 0), Error);
  EXPECT_THROW(ClassMap::clamp(kMin, kMax), Error);
  EXPECT_THROW(ClassMap::clamp(0, kMax), Error);
  EXPECT_THROW(ClassMap::zero_outside(0, -1), Error);
  EXPECT_THROW(ClassMap::zero_outside(-1, kMax), Error);
  EXPECT_THROW(ClassMap::thresholds({0}, {0}), Error);
  EXPECT_THROW(ClassMap::thresholds({}, {}), Error);
  EXPECT_THROW(ClassMap::thresholds({1, 0}, {0, 1, 2}), Error);
  EXPECT_THROW(ClassMap::thresholds({0}, {0, -2}), Error);
  EXPECT_THROW(ClassMap::thresholds({}, {kMax}), Error);
}

TEST(TermData, ComputedValuesLiveAsLongAsACopy) {
  TermData copy;
  {
    const TermData data = TermData::computed({1, 2, 3, 4}, {2, 2}, true);
    copy = data;
  }
  EXPECT_EQ(copy.view.at({1, 0}), 3.0);
  EXPECT_TRUE(copy.wants_gradient);
  EXPECT_THROW(TermData::computed({1, 2, 3}, {2, 2}, false), Error);
  EXPECT_THROW(TermData::parameter({}, false), Error);
}

TEST(Terms, AppendKeepsOrder) {
  Terms terms, other;
  terms.rotations.resize(1);
  other.rotations.resize(2);
  other.rotations[1].start = 8;
  other.biases.resize(1);
  other.row_tables.resize(2);
  other.column_tables.resize(3);
  other.key_biases.resize(4);
  other.value_tables.resize(5);
  terms.append(other);
  EXPECT_EQ(terms.rotations.size(), 3U);
  EXPECT_EQ(terms.rotations[2].start, 8);
  terms.append(terms);
  EXPECT_EQ(terms.rotations.size(), 6U);
  EXPECT_EQ(terms.biases.size(), 2U);
  EXPECT_EQ(terms.row_tables.size(), 4U);
  EXPECT_EQ(terms.column_tables.size(), 6U);
  EXPECT_EQ(terms.key_biases.size(), 8U);
  EXPECT_EQ(terms.value_tables.size(), 10U);
}

TEST(TermGradients, ZerosOnlyWhereWanted) {
  const auto data = [](bool wants) {
    return TermData::computed({1, 2, 3, 4, 5, 6}, {2, 3}, wants);
  };
  Terms terms;
  terms.biases.push_back({ClassMap::clamp(0, 2), data(true), {}});
  terms.row_tables.resize(1);
  terms.row_tables[0].table = data(false);
  terms.row_tables[0].added = data(true);
  terms.column_tables.resize(1);
  terms.column_tables[0].factor = data(true);
  terms.key_biases.push_back({data(false)});
  terms.value_tables.push_back({ClassMap::clamp(0, 1), data(true)});
  const TermGradients zeros = TermGradients::zeros(terms);
  EXPECT_EQ(zeros.biases.at(0).table, std::vector<double>(6));
  EXPECT_TRUE(zeros.biases[0].slopes.empty());
  EXPECT_TRUE(zeros.row_tables.at(0).table.empty());
  EXPECT_EQ(zeros.row_tables[0].added.size(), 6U);
  EXPECT_EQ(zeros.column_tables.at(0).factor.size(), 6U);
  EXPECT_TRUE(zeros.key_biases.at(0).table.empty());
  EXPECT_EQ(zeros.value_tables.at(0).table.size(), 6U);
}

}  // namespace
}  // namespace relpos
