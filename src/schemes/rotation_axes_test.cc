// Which coordinate turns which pair.
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/problem.h"
#include "testing/schemes.h"

namespace relpos {
namespace {

using plain::error_of;
using Given = OptionValues;

TEST(RotationAxes, OfMrope) {
  const auto axes = [](const Given& own) {
    Given all = own;
    all.emplace_back("head_dim", int64_t{128});
    all.emplace_back("layout", "half");
    const Part part = make_part(*find_scheme("mrope"), all);
    const Tensor queries(DType::kInt64, {1, 3, 2}), keys(DType::kInt64, {1, 3, 2});
    const std::vector<TensorView> inputs{queries.view(), keys.view()};
    return part.recipe->bind({CallSizes{}, inputs, {false, false}}).rotations.at(0).axis;
  };
  const std::vector<int> by_section = axes({});  // 16, 24, 24
  EXPECT_EQ(std::count(by_section.begin(), by_section.begin() + 16, 0), 16);
  EXPECT_EQ(std::count(by_section.begin() + 16, by_section.begin() + 40, 1), 24);
  EXPECT_EQ(std::count(by_section.begin() + 40, by_section.end(), 2), 24);
  const std::vector<int> in_turns =
      axes({{"section", std::vector<double>{24, 20, 20}}, {"interleaved", true}});
  for (size_t p = 0; p < 64; ++p) EXPECT_EQ(in_turns[p], p < 60 ? static_cast<int>(p % 3) : 0);
  EXPECT_NE(error_of([&] { axes({{"section", std::vector<double>{1, 2, 3}}}); }).find("section"),
            std::string::npos);
}

TEST(RotationAxes, PatchesTurnByRowAndColumn) {
  const Part part = make_part(*find_scheme("rope_axial"), {{"head_dim", int64_t{8}},
                                                           {"layout", "half"},
                                                           {"grid", std::vector<double>{2, 3}},
                                                           {"prefix", int64_t{1}},
                                                           {"origin", int64_t{1}}});
  TokenPositions at;
  at.consecutive = false;
  at.queries = 7;
  for (int64_t token = 0; token < 7; ++token) at.q.push_back(part.recipe->place(token));
  const std::vector<TensorView> none;
  const Rotation turn = part.recipe->bind({CallSizes{}, none, {}, &at}).rotations.at(0);
  EXPECT_EQ(turn.axis, (std::vector<int>{0, 0, 1, 1}));
  EXPECT_EQ(turn.frequency, (std::vector<double>{1.0, 0.01, 1.0, 0.01}));
  const int64_t rows[] = {0, 1, 1, 1, 2, 2, 2}, columns[] = {0, 1, 2, 3, 1, 2, 3};
  for (int64_t token = 0; token < 7; ++token) {
    EXPECT_EQ(turn.coordinates->query(0, 0, token), rows[token]);
    EXPECT_EQ(turn.coordinates->query(1, 0, token), columns[token]);
  }
}

}  // namespace
}  // namespace relpos
