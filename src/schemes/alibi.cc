// Press, Smith, Lewis 2022 (ALiBi): a penalty that grows linearly with the distance.
//
//   score[h,i,j] += -slopes[h] |pos_k - pos_q|     symmetric; with symmetric=False 0 for the future
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "relpos/scheme.h"
#include "schemes/common/checks.h"
#include "schemes/common/readings.h"
#include "schemes/common/slopes.h"
#include "schemes/common/steps.h"

namespace relpos {

namespace {

constexpr const char* kName = "alibi";

int64_t head_count(const OptionMap& options) {
  return common::size_option(kName, options, "heads");
}

std::vector<double> initial_slopes(const OptionMap& options) {
  const int64_t heads = head_count(options);
  checked_numel({heads}, kName);
  if (const std::vector<double>* given = options.values("slopes")) {
    check_value(static_cast<int64_t>(given->size()) == heads, kName,
                ": slopes: expected one number for each of heads=", heads, ", got ", given->size());
    return *given;
  }
  return options.text("slopes") == "paper" ? common::paper_slopes(heads)
                                           : common::geometric_slopes(heads);
}

std::vector<ParameterSpec> parameters(const OptionMap& options) {
  return {{"slopes",
           {head_count(options)},
           Init::each(initial_slopes(options)),
           options.flag("learned"),
           "how fast each head's penalty grows with the distance"}};
}

void lower(const Setting& setting, Terms& terms) {
  const int64_t heads = head_count(setting.options);
  common::check_fits(kName, "heads", heads, setting.heads);
  const bool symmetric = setting.options.flag("symmetric");
  std::vector<double> past, future;
  for (int64_t h = 0; h < heads; ++h) {
    const double slope = setting.parameters[0].at({h});
    check_value(std::isfinite(slope), kName, ": slopes: expected finite numbers, got ", slope,
                " for head ", h);
    past.push_back(slope);
    future.push_back(symmetric ? -slope : 0.0);
  }
  past.insert(past.end(), future.begin(), future.end());
  DistanceBias bias;
  bias.slopes = TermData::computed(std::move(past), {2, heads}, setting.wants_gradient[0]);
  terms.biases.push_back(std::move(bias));
}

void pull_back(const Setting& setting, const TermGradients& gradients,
               std::vector<std::vector<double>>& sums) {
  std::vector<double>& slopes = sums[0];
  const std::vector<double>& sides = gradients.biases[0].slopes;
  const bool symmetric = setting.options.flag("symmetric");
  for (size_t h = 0; h < slopes.size(); ++h) {
    slopes[h] += sides[h] - (symmetric ? sides[slopes.size() + h] : 0.0);
  }
}

std::vector<Step> steps(const Setting& setting, const Grid& grid) {
  const int64_t heads = head_count(setting.options);
  const TensorView& values = setting.parameters[0];
  const bool symmetric = setting.options.flag("symmetric");
  const auto distance = [&](int64_t q, int64_t k) {
    return symmetric ? -std::abs(q - k) : std::min<int64_t>(k - q, 0);
  };
  Step slopes = common::empty_step("slopes", Step::Kind::kReal, {heads});
  for (int64_t h = 0; h < heads; ++h) slopes.values.push_back(values.at({h}));
  return {
      std::move(slopes),
      common::pairwise("distance_matrix", Step::Kind::kInteger, grid, distance),
      common::pairwise_per_head("biases", heads, grid,
                                [&](int64_t h, int64_t q, int64_t k) {
                                  return values.at({h}) * static_cast<double>(distance(q, k));
                                }),
  };
}

struct Rule {
  std::string text, option;  // option: "" where only numbers say it
  std::vector<double> slopes;
};

// The rules of other code, each set of slopes once.
std::vector<Rule> rules(const OptionMap& given, int64_t heads, bool with_mistakes) {
  const auto power = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(heads)));
  const std::vector<double> paper = common::paper_slopes(heads);
  std::vector<Rule> all = {
      {heads == power ? "2^(-8h/heads): both rules agree for a power of two" : "the paper's rule",
       "paper", paper},
      {"2^(-8h/heads) for a count that is no power of two", "geometric",
       common::geometric_slopes(heads)}};
  if (with_mistakes) {
    std::vector<double> sorted = paper, reversed(paper.rbegin(), paper.rend());
    std::ranges::sort(sorted, std::greater<>());
    std::vector<double> cut = common::geometric_slopes(power);
    cut.resize(static_cast<size_t>(heads));
    all.push_back({"the paper's rule, heads sorted", "", std::move(sorted)});
    all.push_back({"the paper's rule, heads in reverse", "", std::move(reversed)});
    all.push_back({"2^(-8h/n) with n the power of two above, cut", "", std::move(cut)});
  }
  std::vector<Rule> open;
  for (Rule& rule : all) {
    const bool seen =
        std::ranges::any_of(open, [&](const Rule& other) { return other.slopes == rule.slopes; });
    const bool word = given.has("slopes") && given.values("slopes") == nullptr;
    if (!seen && (!word || rule.option == given.text("slopes"))) open.push_back(std::move(rule));
  }
  if (const std::vector<double>* numbers = given.values("slopes")) {
    open.clear();
    if (static_cast<int64_t>(numbers->size()) == heads) open = {{"the given slopes", "", *numbers}};
  }
  return open;
}

std::vector<std::pair<std::string, OptionValue>> options_of(const Rule& rule) {
  const OptionValue slopes = rule.option.empty() ? OptionValue(rule.slopes) : rule.option;
  return {{"heads", static_cast<int64_t>(rule.slopes.size())}, {"slopes", slopes}};
}

Golden near(double value) { return {value, 1e-6 * std::abs(value)}; }  // float32 powers differ so

std::vector<Reading> slope_readings(const Specimen& specimen) {
  std::vector<Reading> readings;
  const int64_t heads = common::size(specimen, 0);
  for (const Rule& rule : rules(specimen.given, heads, true)) {
    for (const double sign : {1.0, -1.0}) {
      readings.push_back({"slopes, " + rule.text + (sign < 0 ? ", negated" : ""), options_of(rule),
                          [slopes = rule.slopes, sign](const std::vector<int64_t>& index) {
                            return near(sign * slopes[static_cast<size_t>(index[0])]);
                          },
                          sign < 0 ? "negate it first: slopes are positive here" : ""});
    }
  }
  if (specimen.given.has("learned") && specimen.given.flag("learned")) {
    readings.push_back({"learned slopes [heads]",
                        {{"heads", heads}, {"learned", true}},
                        {},
                        "any number may stand there; their order is that of the heads"});
  }
  return readings;
}

// [rows of heads, keys]: the same for every query, as softmax allows under a causal mask.
std::vector<Reading> key_readings(const Specimen& specimen) {
  std::vector<Reading> readings;
  const int64_t rows = common::size(specimen, 0), keys = common::size(specimen, 1);
  const int64_t heads = specimen.given.has("heads") ? specimen.given.integer("heads") : rows;
  if (rows % heads != 0 || !common::agrees(specimen.given, "symmetric", false)) return readings;
  for (const Rule& rule : rules(specimen.given, heads, false)) {
    for (const int64_t zero : {int64_t{0}, keys - 1}) {
      auto options = options_of(rule);
      options.emplace_back("symmetric", false);
      readings.push_back(
          {std::string("bias [heads, keys], slope * ") + (zero == 0 ? "k" : "(k - last k)") + ", " +
               rule.text,
           std::move(options),
           [slopes = rule.slopes, zero](const std::vector<int64_t>& index) {
             const size_t head = static_cast<size_t>(index[0]) % slopes.size();
             return near(slopes[head] * static_cast<double>(index[1] - zero));
           },
           "equal under a causal mask only, up to a constant for each query: log-sum-exps differ"});
    }
  }
  return readings;
}

struct Shape {
  const char* text;
  std::optional<bool> symmetric;  // none: no option means it
  double (*of)(double delta);
  const char* note;
};

constexpr Shape kShapes[] = {
    {"-slope |distance|", true, [](double d) { return -std::abs(d); }, ""},
    {"-slope |distance|, 0 for the future", false, [](double d) { return std::min(d, 0.0); }, ""},
    {"slope (key - query), above 0 for the future", false, [](double d) { return d; },
     "equal under a causal mask only"},
    {"slope |distance|, which favours far keys", std::nullopt, [](double d) { return std::abs(d); },
     "negate it first"},
};

std::vector<Reading> bias_readings(const Specimen& specimen) {
  std::vector<Reading> readings;
  const int64_t queries = common::size(specimen, 1), keys = common::size(specimen, 2);
  for (const Shape& shape : kShapes) {
    if (shape.symmetric && !common::agrees(specimen.given, "symmetric", *shape.symmetric)) continue;
    const bool even = shape.of(1.0) == shape.of(-1.0);
    for (const Rule& rule : rules(specimen.given, common::size(specimen, 0), false)) {
      for (const common::Lay& lay : common::lays(queries, keys, true)) {
        if (even && lay.transposed && lay.q_offset == 0) continue;  // the same numbers
        auto options = options_of(rule);
        if (shape.symmetric) {
          options.emplace_back("symmetric", *shape.symmetric);
        }
        const std::string turn = common::note_of(lay);
        readings.push_back(
            {std::string("bias [heads, ...], ") + lay.text + ", " + shape.text + ", " + rule.text,
             std::move(options),
             [slopes = rule.slopes, of = shape.of, lay](const std::vector<int64_t>& index) {
               return near(slopes[static_cast<size_t>(index[0])] *
                           of(static_cast<double>(lay.delta(index[1], index[2]))));
             },
             turn + (!turn.empty() && *shape.note != '\0' ? "; " : "") + shape.note});
      }
    }
  }
  return readings;
}

std::vector<Reading> readings(const Specimen& specimen) {
  const int rank = specimen.values.rank;
  if (common::is_integer(specimen) || rank < 1 || rank > 3) return {};
  if (specimen.given.has("heads")) head_count(specimen.given);
  if (rank == 2) return key_readings(specimen);
  if (!common::agrees(specimen.given, "heads", common::size(specimen, 0))) return {};
  return rank == 1 ? slope_readings(specimen) : bias_readings(specimen);
}

}  // namespace

namespace schemes_impl {

Scheme alibi() {
  Scheme scheme;
  scheme.name = kName;
  scheme.class_name = "ALiBi";
  scheme.summary = "a penalty that grows linearly with the distance, with a slope for each head";
  scheme.source = "Press, Smith, Lewis 2022, Train Short, Test Long, section 3";
  scheme.options = {
      {.name = "heads",
       .type = OptionType::kInt,
       .required = true,
       .positional = true,
       .doc = "query heads"},
      {.name = "slopes",
       .type = OptionType::kChoiceOrValues,
       .fallback = "paper",
       .choices = {"paper", "geometric"},
       .doc = "the paper's rule for any head count, 2^(-8h/heads) for every one, or numbers"},
      {.name = "symmetric",
       .type = OptionType::kBool,
       .fallback = true,
       .doc = "the future is penalised as the past; else its bias is 0"},
      {.name = "learned", .type = OptionType::kBool, .fallback = false, .doc = "train the slopes"},
  };
  scheme.parameters = parameters;
  scheme.lower = lower;
  scheme.pull_back = pull_back;
  scheme.steps = steps;
  scheme.recognition = {
      .names = {"slopes", "alibi_slopes", "alibi"},
      .shapes = "slopes [heads]; bias [heads, Lq, Lk], or [heads, Lk] for all queries",
      .readings = readings};
  return scheme;
}

}  // namespace schemes_impl

}  // namespace relpos
