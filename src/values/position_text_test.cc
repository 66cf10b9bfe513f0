#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "relpos/scheme.h"
#include "testing/schemes.h"

namespace relpos {
namespace {

using Given = std::vector<std::pair<std::string, OptionValue>>;

std::string error(std::string_view text) {
  return plain::error_of([&] { parse_position(text); });
}

void expect_equal(const Position& a, const Position& b) {
  ASSERT_EQ(a.parts.size(), b.parts.size());
  for (size_t n = 0; n < a.parts.size(); ++n) {
    EXPECT_EQ(&a.parts[n].scheme(), &b.parts[n].scheme());
    EXPECT_EQ(a.parts[n].options().items(), b.parts[n].options().items());
  }
}

TEST(ParsePosition, Sum) {
  const Position position =
      parse_position(" rope( head_dim = 64,layout=half ,base=5e5)\n+ t5(heads=8, buckets=16)");
  ASSERT_EQ(position.parts.size(), 2U);
  EXPECT_EQ(&position.parts[0].scheme(), find_scheme("rope"));
  EXPECT_EQ(position.parts[0].options().integer("head_dim"), 64);
  EXPECT_EQ(position.parts[0].options().text("layout"), "half");
  EXPECT_EQ(position.parts[0].options().number("base"), 5e5);
  EXPECT_TRUE(position.parts[0].parameters.empty());
  EXPECT_EQ(&position.parts[1].scheme(), find_scheme("t5"));
  EXPECT_EQ(position.parts[1].options().integer("buckets"), 16);
  EXPECT_TRUE(parse_position("").parts.empty());
  EXPECT_TRUE(parse_position(" \t").parts.empty());
}

TEST(ParsePosition, Values) {
  const auto options = [](const std::string& text) {
    return parse_position(text).parts[0].options();
  };
  EXPECT_FALSE(options("alibi(heads=2, symmetric=false)").flag("symmetric"));
  EXPECT_TRUE(options("alibi(heads=2, learned=True)").flag("learned"));
  EXPECT_EQ(options("alibi(heads=2, slopes=geometric)").text("slopes"), "geometric");
  EXPECT_EQ(options("alibi(heads=2, slopes='paper')").text("slopes"), "paper");
  EXPECT_EQ(options("alibi(heads=2, slopes=\"pa\\per\")").text("slopes"), "paper");
  EXPECT_EQ(*options("alibi(heads=+3, slopes=[1, -0.5 ,2.5e-1])").values("slopes"),
            (std::vector<double>{1, -0.5, 0.25}));
  EXPECT_FALSE(options("shaw(max_distance=2, head_dim=4, heads=none)").has("heads"));
  EXPECT_EQ(options("shaw(max_distance=2, head_dim=4, distance=query-key)").text("distance"),
            "query-key");
}

TEST(ParsePosition, DefaultsServeRequiredOptionsOnly) {
  const Given defaults{{"heads", int64_t{8}}, {"head_dim", int64_t{32}}, {"unknown", 1.0}};
  const Position position =
      parse_position("t5+rope(layout=half)+shaw(max_distance=3)+t5(heads=2)", defaults);
  EXPECT_EQ(position.parts[0].options().integer("heads"), 8);
  EXPECT_EQ(position.parts[1].options().integer("head_dim"), 32);
  EXPECT_EQ(position.parts[2].options().integer("head_dim"), 32);
  EXPECT_FALSE(position.parts[2].options().has("heads"));  // optional there
  EXPECT_EQ(position.parts[3].options().integer("heads"), 2);
}

TEST(ParsePosition, ErrorsNameThePlace) {
  EXPECT_EQ(error("t5(heads=2)+rop(head_dim=4)"),
            "position: no scheme 'rop' at character 13 of \"t5(heads=2)+rop(head_dim=4)\"; did you "
            "mean 'rope'?");
  EXPECT_EQ(error("t5(heads=2"),
            "position: expected ',' or ')' at character 11 of \"t5(heads=2\", got the end");
  EXPECT_EQ(error("t5(heads)"),
            "position: expected '=' after 'heads' at character 9 of \"t5(heads)\", got ')'");
  EXPECT_EQ(error("t5(heads=)"),
            "position: expected a value at character 10 of \"t5(heads=)\", got ')'");
  EXPECT_EQ(error("t5(heads=2) t5"),
            "position: expected '+' or the end at character 13 of \"t5(heads=2) t5\", got 't'");
  EXPECT_EQ(error("t5(heads=2)+"),
            "position: expected the name of a scheme at character 13 of \"t5(heads=2)+\", got the "
            "end");
  EXPECT_EQ(error("t5(head=2)"), "t5: no option 'head'; did you mean 'heads'?");
  EXPECT_EQ(error("alibi(heads=2, slopes=[0.5, x])"),
            "position: expected a number at character 29 of \"alibi(heads=2, slopes=[0.5, x])\", "
            "got 'x'");
  EXPECT_EQ(error("alibi(heads=2, slopes=[0.5, nan])"),
            "alibi: slopes: expected finite numbers, got nan");
  EXPECT_EQ(error("t5(heads=2, scale=1e999)"), "position: the number 1e999 does not fit float64");
  EXPECT_EQ(error("t5(heads='2)"),
            "position: expected a closing ' at character 13 of \"t5(heads='2)\", got the end");
}

TEST(ParsePosition, NeverCrashesOnDamagedText) {
  const std::string whole = "rope(head_dim=8, layout='half')+alibi(heads=2, slopes=[0.5, -1e-3])";
  std::mt19937 random(7);
  for (int n = 0; n < 20000; ++n) {
    std::string text = whole;
    for (uint32_t edits = 1 + random() % 3; edits > 0; --edits) {
      const size_t at = random() % text.size();
      if (random() % 2 == 0) {
        text.erase(at, 1);
      } else {
        text[at] = static_cast<char>(random() % 256);
      }
    }
    try {
      const Position position = parse_position(text);
      expect_equal(parse_position(position_text(position)), position);
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()), "");
    }
  }
}

TEST(PositionText, Canonical) {
  EXPECT_EQ(position_text(parse_position("")), "");
  EXPECT_EQ(position_text(parse_position("t5( buckets=32, heads=8 ,scale=1)")), "t5(heads=8)");
  EXPECT_EQ(position_text(parse_position("rope(layout='half', head_dim=4,base=0.1)+"
                                         "alibi(slopes=[0.5, 1e-30], heads=2)")),
            "rope(head_dim=4, layout=half, base=0.1)+alibi(heads=2, slopes=[0.5, 1e-30])");
}

TEST(PositionText, DoublesComeBackBitForBit) {
  const Scheme* scheme = find_scheme("alibi");
  std::mt19937_64 random(11);
  std::vector<double> slopes{0.1, 1.0 / 3.0, 5e-324, 1.7976931348623157e308, -0.0, 1e22, 123456789};
  while (slopes.size() < 2000) {
    const auto value =
        std::ldexp(static_cast<double>(random()), static_cast<int>(random() % 1800) - 900);
    if (std::isfinite(value)) slopes.push_back(value);
  }
  Position position;
  position.parts.push_back(
      make_part(*scheme, {{"heads", static_cast<int64_t>(slopes.size())}, {"slopes", slopes}}));
  const Position back = parse_position(position_text(position));
  expect_equal(back, position);
  EXPECT_TRUE(std::signbit((*back.parts[0].options().values("slopes"))[4]));
}

TEST(OptionText, QuotesWhatIsNoBareWord) {
  EXPECT_EQ(option_text("query-key"), "query-key");
  EXPECT_EQ(option_text(""), "''");
  EXPECT_EQ(option_text("true"), "'true'");
  EXPECT_EQ(option_text("nan"), "'nan'");
  EXPECT_EQ(option_text("12"), "'12'");
  EXPECT_EQ(option_text("a 'b\\"), "'a \\'b\\\\'");
  EXPECT_EQ(option_text(std::vector<double>{}), "[]");
  EXPECT_EQ(option_text(std::monostate()), "none");
  EXPECT_EQ(option_text(true), "true");
  EXPECT_EQ(option_text(int64_t{-3}), "-3");
}

}  // namespace
}  // namespace relpos
