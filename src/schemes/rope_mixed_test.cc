#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/problem.h"
#include "relpos/attention.h"
#include "testing/schemes.h"
#include "values/turns.h"

namespace relpos {
namespace {

using plain::error_of;

OptionValues with(const OptionValues& own) {
  OptionValues all{{"heads", int64_t{2}}, {"grid", std::vector<double>{2, 3}}};
  all.insert(all.end(), own.begin(), own.end());
  return all;
}

TEST(RoPEMixed, StartsWithDirectionsAtRightAngles) {
  const Part part = make_part(*find_scheme("rope_mixed"), with({{"head_dim", int64_t{8}}}));
  const ParameterSpec& freqs = part.specs().at(0);
  EXPECT_EQ(freqs.name, "freqs");
  EXPECT_EQ(freqs.shape, (std::vector<int64_t>{2, 2, 4}));
  EXPECT_EQ(freqs.init.kind, Init::Kind::kTurned);
  const double slow = std::pow(10.0, -0.5);
  EXPECT_EQ(freqs.init.values, (std::vector<double>{1, slow, 0, 0, 0, 0, 1, slow}));
}

TEST(RoPEMixed, TurnsByColumnAndRow) {
  for (const char* indexing : {"xy", "ij"}) {
    const plain::Made made(
        "rope_mixed",
        with({{"head_dim", int64_t{4}}, {"prefix", int64_t{1}}, {"indexing", indexing}}));
    TokenPositions at;
    at.consecutive = false;
    at.queries = 7;
    for (int64_t token = 0; token < 7; ++token) at.q.push_back(made.place()(token));
    const Rotation turn = made.lower(at).rotations.at(0);
    EXPECT_EQ(turn.layout, PairLayout::kInterleaved);
    const int64_t of_y = indexing[0] == 'i' ? 0 : 1;
    const int64_t rows[] = {0, 0, 0, 0, 1, 1, 1}, columns[] = {0, 0, 1, 2, 0, 1, 2};
    for (int64_t token = 0; token < 7; ++token) {
      EXPECT_EQ(turn.coordinates->query(of_y, 0, token), rows[token]);
      EXPECT_EQ(turn.coordinates->query(1 - of_y, 0, token), columns[token]);
      const TensorView& freqs = made.parameters()[0];
      const auto y = static_cast<double>(rows[token]), x = static_cast<double>(columns[token]);
      EXPECT_DOUBLE_EQ(angle_of(at, turn, 1, true, 0, 1, token),
                       y * freqs.at({of_y, 1, 1}) + x * freqs.at({1 - of_y, 1, 1}));
    }
  }
}

// Four query heads in groups of two: heads 2 and 3 turn as key head 1.
TEST(RoPEMixed, QueriesTurnAsTheKeyHeadOfTheirGroup) {
  Part part = make_part(*find_scheme("rope_mixed"), {{"heads", int64_t{4}},
                                                     {"head_dim", int64_t{4}},
                                                     {"grid", std::vector<double>{2}},
                                                     {"kv_heads", int64_t{2}}});
  Tensor freqs(DType::kFloat64, part.specs()[0].shape), q(DType::kFloat64, {1, 4, 4, 4}),
      k(DType::kFloat64, {1, 2, 4, 4}), score(DType::kFloat64, {1, 4, 4, 4});
  for (int64_t n = 0; n < 8; ++n) freqs.view().store(n, 0.1 * static_cast<double>(n + 1));
  for (int64_t row = 0; row < 16; ++row) q.view().store(4 * row, 1.0);
  for (int64_t row = 0; row < 8; ++row) k.view().store(4 * row, 1.0);
  part.parameters = {freqs.view()};
  Options options;
  options.enable_gqa = true;
  options.scale = 1.0;
  scores(q.view(), k.view(), {{part}}, options, score.view());
  for (int64_t h = 0; h < 4; ++h) {
    const double of_x = freqs.view().at({0, h / 2, 0}), of_y = freqs.view().at({1, h / 2, 0});
    EXPECT_NEAR(score.view().at({0, h, 0, 3}), std::cos(of_x + of_y), 1e-15);
    EXPECT_NEAR(score.view().at({0, h, 2, 1}), std::cos(of_x - of_y), 1e-15);
  }
  const Tensor one(DType::kFloat64, {1, 1, 4, 4});
  const std::string error =
      error_of([&] { scores(q.view(), one.view(), {{part}}, options, score.view()); });
  EXPECT_NE(error.find("kv_heads=2, the call has 1"), std::string::npos) << error;
}

TEST(RoPEMixed, RefusesWhatHasNoMeaning) {
  const auto error = [](const OptionValues& own) {
    return error_of([&] { make_part(*find_scheme("rope_mixed"), with(own)); });
  };
  EXPECT_NE(error({{"head_dim", int64_t{6}}}).find("multiple of 4, got 6"), std::string::npos);
  EXPECT_NE(error({{"head_dim", int64_t{4}}, {"kv_heads", int64_t{3}}})
                .find("kv_heads: expected a divisor of heads=2, got 3"),
            std::string::npos);
  Part part = make_part(*find_scheme("rope_mixed"), with({{"head_dim", int64_t{4}}}));
  const Tensor x(DType::kFloat32, {6, 4}), freqs(DType::kFloat32, {2, 2, 2});
  const auto rotated = [&] {
    return error_of([&] { rotate(part, x.view(), 0, {}, false, x.view()); });
  };
  EXPECT_NE(rotated().find("expected 1 parameters, got 0"), std::string::npos) << rotated();
  part.parameters = {freqs.view()};
  EXPECT_NE(rotated().find("H a multiple of the 2 heads"), std::string::npos) << rotated();
}

}  // namespace
}  // namespace relpos
