#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

#include "conventions/common.h"
#include "schemes/common/slopes.h"

namespace relpos::conventions {
namespace {

struct Rule {
  std::string text;
  std::string option;  // empty where only numbers say it
  std::vector<double> slopes;

  OptionValues options() const {
    return {{"heads", static_cast<int64_t>(slopes.size())},
            {"slopes", option.empty() ? OptionValue(slopes) : OptionValue(option)}};
  }
};

// The rules of other code that are left open, each set of slopes once.
std::vector<Rule> rules(const CheckedTensor& tensor, int64_t heads, bool with_mistakes) {
  if (const std::vector<double>* numbers = tensor.given.values("slopes")) {
    if (static_cast<int64_t>(numbers->size()) != heads) return {};
    return {{"the given slopes", "", *numbers}};
  }
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
    const auto same = [&](const Rule& other) { return other.slopes == rule.slopes; };
    if (tensor.agrees(rule.options()) && std::ranges::none_of(open, same)) {
      open.push_back(std::move(rule));
    }
  }
  return open;
}

// The slope of an index's head times a factor of the index. Other code's float32 powers differ by
// as much as the slack.
template <typename Factor>
Expected scaled(const Rule& rule, const Factor& factor) {
  return [slopes = rule.slopes, factor](const std::vector<int64_t>& index) {
    const double value = slopes[static_cast<size_t>(index[0]) % slopes.size()] * factor(index);
    return ExpectedValue{value, 1e-6 * std::abs(value)};
  };
}

std::vector<Convention> of_slopes(const CheckedTensor& tensor) {
  std::vector<Convention> found;
  for (const Rule& rule : rules(tensor, tensor.size(0), true)) {
    for (const double sign : {1.0, -1.0}) {
      found.push_back({"slopes, " + rule.text + (sign < 0 ? ", negated" : ""), rule.options(),
                       scaled(rule, [sign](const auto&) { return sign; }),
                       sign < 0 ? "negate it first: slopes are positive here" : ""});
    }
  }
  if (tensor.given.has("learned") && tensor.given.flag("learned")) {
    found.push_back({"learned slopes [heads]",
                     {{"heads", tensor.size(0)}, {"learned", true}},
                     {},
                     "any number may stand there; their order is that of the heads"});
  }
  return found;
}

// [rows of heads, keys]: the same for every query, as softmax allows under a causal mask.
std::vector<Convention> of_keys(const CheckedTensor& tensor) {
  std::vector<Convention> found;
  const int64_t rows = tensor.size(0), keys = tensor.size(1);
  const int64_t heads = tensor.given.has("heads") ? tensor.given.integer("heads") : rows;
  if (rows % heads != 0) return found;
  for (const Rule& rule : rules(tensor, heads, false)) {
    OptionValues options = rule.options();
    options.emplace_back("symmetric", false);
    for (const int64_t zero : {int64_t{0}, keys - 1}) {
      found.push_back(
          {std::string("bias [heads, keys], slope * ") + (zero == 0 ? "k" : "(k - last k)") + ", " +
               rule.text,
           options,
           scaled(rule, [zero](const auto& index) { return static_cast<double>(index[1] - zero); }),
           "equal under a causal mask only, up to a constant for each query: log-sum-exps differ"});
    }
  }
  return found;
}

struct Sides {
  const char* text;
  OptionValue symmetric;  // None: no option means it
  double past, future;    // what multiplies slope * |distance|
  const char* note;
};

const Sides kSides[] = {
    {"-slope |distance|", true, -1, -1, ""},
    {"-slope |distance|, 0 for the future", false, -1, 0, ""},
    {"slope (key - query), above 0 for the future", false, -1, 1, "equal under a causal mask only"},
    {"slope |distance|, which favours far keys", {}, 1, 1, "negate it first"},
};

std::vector<Convention> of_biases(const CheckedTensor& tensor) {
  std::vector<Convention> found;
  const auto all = arrangements(tensor.size(1), tensor.size(2), true);
  for (const Sides& sides : kSides) {
    for (const Rule& rule : rules(tensor, tensor.size(0), false)) {
      OptionValues options = rule.options();
      if (sides.symmetric != OptionValue()) options.emplace_back("symmetric", sides.symmetric);
      for (const Arrangement& arrangement : all) {
        const bool same_numbers = sides.past == sides.future && arrangement.q_offset == 0;
        if (same_numbers && arrangement.transposed) continue;
        const std::string turn = arrangement.note();
        found.push_back(
            {"bias [heads, ...], " + arrangement.text + ", " + sides.text + ", " + rule.text,
             options,
             scaled(rule,
                    [=](const auto& index) {
                      const auto delta =
                          static_cast<double>(arrangement.distance(index[1], index[2]));
                      return std::abs(delta) * (delta < 0 ? sides.past : sides.future);
                    }),
             turn + (!turn.empty() && *sides.note != '\0' ? "; " : "") + sides.note});
      }
    }
  }
  return found;
}

std::vector<Convention> of(const CheckedTensor& tensor) {
  check_sizes("alibi", tensor.given, {"heads"});
  if (tensor.is_integer()) return {};
  if (tensor.values.rank == 1) return of_slopes(tensor);
  if (tensor.values.rank == 2) return of_keys(tensor);
  return tensor.values.rank == 3 ? of_biases(tensor) : std::vector<Convention>();
}

}  // namespace

Conventions alibi() {
  return {{"slopes", "alibi_slopes", "alibi"},
          "slopes [heads]; bias [heads, Lq, Lk], or [heads, Lk] for all queries",
          of};
}

}  // namespace relpos::conventions
