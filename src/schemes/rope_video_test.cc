#include <gtest/gtest.h>

#include "testing/schemes.h"

namespace relpos {
namespace {

Rotation turn_of(const OptionValues& own, const std::vector<int64_t>& tokens) {
  OptionValues all{{"head_dim", int64_t{64}}, {"layout", "interleaved"}};
  all.insert(all.end(), own.begin(), own.end());
  const Part part = make_part(*find_scheme("rope_video"), all);
  TokenPositions at;
  at.consecutive = false;
  at.queries = static_cast<int64_t>(tokens.size());
  for (const int64_t token : tokens) at.q.push_back(part.recipe->place(token));
  const std::vector<TensorView> none;
  return part.recipe->bind({CallSizes{}, none, {}, &at}).rotations.at(0);
}

TEST(RopeVideo, EachAxisHasALadderOfItsOwn) {
  const Rotation turn = turn_of(
      {{"grid", std::vector<double>{30, 45}}, {"section", std::vector<double>{8, 12, 12}}}, {});
  ASSERT_EQ(turn.frequency.size(), 32U);  // CogVideoX
  for (size_t p = 0; p < 32; ++p) EXPECT_EQ(turn.axis[p], p < 8 ? 0 : p < 20 ? 1 : 2);
  EXPECT_NEAR(turn.frequency[1], 0.3162277660, 1e-9);
  EXPECT_NEAR(turn.frequency[9], 0.4641588834, 1e-9);
  EXPECT_EQ(turn.frequency[8], 1.0);
  EXPECT_EQ(turn.frequency[20], 1.0);
  const Rotation wan = turn_of({{"grid", std::vector<double>{4}}}, {});
  EXPECT_EQ(std::count(wan.axis.begin(), wan.axis.end(), 0), 12);
  EXPECT_EQ(std::count(wan.axis.begin(), wan.axis.end(), 1), 10);
}

TEST(RopeVideo, TokensStandRowByRowAndFrameByFrame) {
  const Rotation turn = turn_of({{"grid", std::vector<double>{2, 3}}, {"prefix", int64_t{2}}},
                                {0, 1, 2, 3, 5, 8, 13});
  const int64_t frame[] = {0, 0, 0, 0, 0, 1, 1}, row[] = {0, 0, 0, 0, 1, 0, 1},
                column[] = {0, 0, 0, 1, 0, 0, 2};
  for (int64_t i = 0; i < 7; ++i) {
    EXPECT_EQ(turn.coordinates->query(0, 0, i), frame[i]);
    EXPECT_EQ(turn.coordinates->query(1, 0, i), row[i]);
    EXPECT_EQ(turn.coordinates->query(2, 0, i), column[i]);
  }
}

}  // namespace
}  // namespace relpos
