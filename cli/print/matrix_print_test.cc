#include "cli/print/matrix_print.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string>

namespace relpos::cli {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::string plain(const Step& matrix) { return matrix_text(matrix, Style{}); }

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(MatrixPrint, IntegersAlign) {
  EXPECT_EQ(plain({"", Step::Kind::kInteger, {2, 3}, {0, -1, 10, 2, 3, 4}}),
            "[[ 0, -1, 10],\n [ 2,  3,  4]]\n");
  EXPECT_EQ(plain({"", Step::Kind::kInteger, {2}, {-9223372036854775808.0, 1}}),
            "[-9223372036854775808,                    1]\n");
}

TEST(MatrixPrint, RealsHaveFourDecimals) {
  EXPECT_EQ(plain({"", Step::Kind::kReal, {1, 4}, {0.5, -0.0, -kInf, kNan}}),
            "[[0.5000, 0.0000,   -inf,    nan]]\n");
  EXPECT_EQ(plain({"", Step::Kind::kReal, {2}, {0.00001, -0.00002}}),
            "[ 1.0000e-05, -2.0000e-05]\n");
}

TEST(MatrixPrint, OtherShapes) {
  EXPECT_EQ(plain({"", Step::Kind::kBoolean, {1, 2}, {1, 0}}), "[[ True, False]]\n");
  EXPECT_EQ(plain({"", Step::Kind::kInteger, {}, {7}}), "7\n");
  EXPECT_EQ(plain({"", Step::Kind::kInteger, {0, 3}, {}}), "[]\n");
  EXPECT_EQ(plain({"", Step::Kind::kInteger, {2, 0}, {}}), "[[],\n []]\n");
  EXPECT_EQ(plain({"", Step::Kind::kInteger, {2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8}}),
            "[[[1, 2],\n  [3, 4]],\n\n [[5, 6],\n  [7, 8]]]\n");
}

TEST(MatrixPrint, HeatMapsHoldTheNumbersThatFit) {
  const Step matrix{"", Step::Kind::kInteger, {2, 2}, {0, 1, 2, 3}};
  const std::string text = matrix_text(matrix, {Style::Color::kTrue, 40, 24});
  EXPECT_EQ(count(text, "\x1b[48;2;"), 4U);
  EXPECT_EQ(count(text, "\n"), 2U);
  EXPECT_NE(text.find("\x1b[48;2;68;1;84m\x1b[38;2;255;255;255m0 \x1b[0m"), std::string::npos);
  EXPECT_EQ(count(matrix_text(matrix, {Style::Color::k256, 40, 24}), "\x1b[48;5;"), 4U);
  const Step negative{"", Step::Kind::kInteger, {1, 2}, {-2, -1}};  // one scale, from its least on
  EXPECT_NE(matrix_text(negative, {Style::Color::kTrue, 40, 24}).find("48;2;68;1;84m"),
            std::string::npos);
  const Step odd{"", Step::Kind::kReal, {1, 3}, {kNan, -kInf, 1}};
  EXPECT_EQ(count(matrix_text(odd, {Style::Color::kTrue, 40, 24}), "48;2;90;90;90m"), 2U);
  EXPECT_EQ(matrix_text({"", Step::Kind::kReal, {0, 3}, {}}, {Style::Color::kTrue, 40, 24}), "");
}

TEST(MatrixPrint, HeatMapsAreCutToTheTerminal) {
  Step matrix{"", Step::Kind::kReal, {100, 100}, std::vector<double>(10000, 0.25)};
  matrix.values[0] = -1;
  const std::string text = matrix_text(matrix, {Style::Color::k256, 30, 15});
  EXPECT_NE(text.find("(10 x 11 of 100 x 100"), std::string::npos) << text;
  EXPECT_EQ(count(text, " ...\n"), 10U);
}

TEST(MatrixPrint, JsonKeepsEveryNumber) {
  const Step matrix{"n", Step::Kind::kReal, {2, 2}, {0.1, -kInf, kNan, 2}};
  EXPECT_EQ(matrix_json(matrix).dump(),
            R"({"name":"n","kind":"real","shape":[2,2],"values":[[0.1,"-inf"],["nan",2.0]]})");
  EXPECT_EQ(matrix_json({"b", Step::Kind::kBoolean, {2}, {1, 0}})["values"].dump(), "[true,false]");
  EXPECT_EQ(matrix_json({"i", Step::Kind::kInteger, {1}, {-3}})["values"].dump(), "[-3]");
}

}  // namespace
}  // namespace relpos::cli
