#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "base/nearest.h"
#include "relpos/scheme.h"

namespace relpos {
namespace {

using Given = std::vector<std::pair<std::string, OptionValue>>;

Scheme toy() {
  Scheme scheme;
  scheme.name = "toy";
  scheme.options = {
      {.name = "heads", .type = OptionType::kInt, .required = true, .doc = "query heads"},
      {.name = "base", .type = OptionType::kFloat, .fallback = int64_t{10}, .doc = ""},
      {.name = "side",
       .type = OptionType::kChoice,
       .fallback = "left",
       .choices = {"left", "right"},
       .doc = ""},
      {.name = "slopes",
       .type = OptionType::kChoiceOrValues,
       .fallback = "paper",
       .choices = {"paper"},
       .doc = ""},
      {.name = "learned", .type = OptionType::kBool, .fallback = false, .doc = ""},
      {.name = "limit", .type = OptionType::kInt, .doc = ""},
  };
  return scheme;
}

// The text of the error that these options cause, with its kind in front.
std::string error(const Given& given) {
  try {
    make_options(toy(), given);
  } catch (const Error& e) {
    return (e.kind() == ErrorKind::kType ? "type: " : "value: ") + std::string(e.what());
  }
  return "none";
}

TEST(MakeOptions, FillsDefaultsAndWidensIntegers) {
  const OptionMap options = make_options(toy(), {{"heads", int64_t{4}}});
  EXPECT_EQ(options.integer("heads"), 4);
  EXPECT_EQ(options.number("base"), 10.0);
  EXPECT_EQ(options.text("side"), "left");
  EXPECT_EQ(options.text("slopes"), "paper");
  EXPECT_EQ(options.values("slopes"), nullptr);
  EXPECT_FALSE(options.flag("learned"));
  EXPECT_FALSE(options.has("limit"));
  EXPECT_TRUE(options.has("heads"));
  ASSERT_EQ(options.items().size(), 6U);
  EXPECT_EQ(options.items()[5].first, "limit");
}

TEST(MakeOptions, TakesWhatIsGiven) {
  const OptionMap options = make_options(toy(), {{"slopes", std::vector<double>{0.5, 0.25}},
                                                 {"heads", int64_t{2}},
                                                 {"base", int64_t{7}},
                                                 {"limit", int64_t{3}},
                                                 {"learned", true},
                                                 {"side", "right"}});
  ASSERT_NE(options.values("slopes"), nullptr);
  EXPECT_EQ(*options.values("slopes"), (std::vector<double>{0.5, 0.25}));
  EXPECT_EQ(options.number("base"), 7.0);
  EXPECT_EQ(options.integer("limit"), 3);
  EXPECT_TRUE(options.flag("learned"));
  EXPECT_EQ(options.items()[0].first, "heads");
}

TEST(MakeOptions, NamesSchemeOptionAndWhatWasExpected) {
  const std::pair<std::string, OptionValue> heads{"heads", int64_t{4}};
  EXPECT_EQ(error({}), "value: toy: heads: missing; expected an integer (query heads)");
  EXPECT_EQ(error({{"heads", std::monostate()}}),
            "value: toy: heads: missing; expected an integer (query heads)");
  EXPECT_EQ(error({heads, {"slope", 0.5}}),
            "value: toy: no option 'slope'; did you mean 'slopes'?");
  EXPECT_EQ(error({heads, {"zzzzzz", 0.5}}),
            "value: toy: no option 'zzzzzz'; expected one of 'heads', 'base', 'side', 'slopes', "
            "'learned', 'limit'");
  EXPECT_EQ(error({heads, heads}), "value: toy: heads: given twice");
  EXPECT_EQ(error({{"heads", 4.5}}), "type: toy: heads: expected an integer, got 4.5");
  EXPECT_EQ(error({{"heads", true}}), "type: toy: heads: expected an integer, got true");
  EXPECT_EQ(error({heads, {"base", "e"}}), "type: toy: base: expected a number, got e");
  EXPECT_EQ(error({heads, {"base", std::monostate()}}),
            "type: toy: base: expected a number, got none");
  EXPECT_EQ(error({heads, {"learned", int64_t{1}}}),
            "type: toy: learned: expected true or false, got 1");
  EXPECT_EQ(error({heads, {"side", "up"}}),
            "value: toy: side: expected one of 'left', 'right', got up");
  EXPECT_EQ(error({heads, {"slopes", 0.5}}),
            "type: toy: slopes: expected a list of numbers or one of 'paper', got 0.5");
}

TEST(MakeOptions, RefusesNumbersThatAreNotFinite) {
  const std::pair<std::string, OptionValue> heads{"heads", int64_t{2}};
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(error({heads, {"slopes", std::vector<double>{1.0, nan}}}),
            "value: toy: slopes: expected finite numbers, got nan");
  EXPECT_EQ(error({heads, {"base", -inf}}), "value: toy: base: expected finite numbers, got -inf");
}

TEST(OptionMap, SaysWhatIsMissing) {
  OptionMap options;
  options.set("a", int64_t{1});
  options.set("a", int64_t{2});
  EXPECT_EQ(options.items().size(), 1U);
  EXPECT_EQ(options.integer("a"), 2);
  EXPECT_EQ(options.number("a"), 2.0);
  EXPECT_THROW(options.flag("a"), Error);
  EXPECT_THROW(options.integer("b"), Error);
  EXPECT_EQ(options.values("b"), nullptr);
}

TEST(Init, Glorot) {
  const Init uniform = Init::glorot_uniform(5, 7), normal = Init::glorot_normal(6, 2);
  EXPECT_EQ(uniform.kind, Init::Kind::kUniform);
  EXPECT_DOUBLE_EQ(uniform.high, 0.70710678118654757);
  EXPECT_EQ(normal.kind, Init::Kind::kNormal);
  EXPECT_DOUBLE_EQ(normal.deviation, 0.5);
  EXPECT_THROW(Init::glorot_uniform(0, 4), Error);
}

TEST(NearestName, Suggests) {
  const std::vector<std::string> names{"max_distance", "heads", "learned", "music_transformer"};
  EXPECT_EQ(nearest_name("max-distance", names), "max_distance");
  EXPECT_EQ(nearest_name("haeds", names), "heads");
  EXPECT_EQ(nearest_name("Learn", names), "learned");
  EXPECT_EQ(nearest_name("music", names), "music_transformer");
  EXPECT_EQ(nearest_name("xyz", names), "");
  EXPECT_EQ(nearest_name("", names), "");
  EXPECT_EQ(nearest_name(std::string(100000, 'a'), names), "");
}

TEST(Registry, IsComplete) {
  std::set<std::string> names, classes;
  for (const Scheme& scheme : schemes()) {
    SCOPED_TRACE(scheme.name);
    EXPECT_TRUE(names.insert(scheme.name).second);
    EXPECT_TRUE(classes.insert(scheme.class_name).second);
    EXPECT_EQ(find_scheme(scheme.name), &scheme);
    EXPECT_FALSE(scheme.summary.empty());
    EXPECT_FALSE(scheme.source.empty());
    EXPECT_NE(scheme.make, nullptr);
    std::set<std::string> options;
    for (const OptionSpec& spec : scheme.options) {
      EXPECT_TRUE(options.insert(spec.name).second) << spec.name;
      EXPECT_FALSE(spec.doc.empty()) << spec.name;
    }
  }
  EXPECT_FALSE(names.empty());
  EXPECT_EQ(find_scheme("no such scheme"), nullptr);
}

}  // namespace
}  // namespace relpos
