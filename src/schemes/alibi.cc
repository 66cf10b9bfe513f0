// Press, Smith, Lewis 2022 (ALiBi): a penalty that grows linearly with the distance.
//
//   score[h,i,j] += -slopes[h] |pos_k - pos_q|     symmetric; with symmetric=False 0 for the future
//
// With sides="own" slopes[0, h] of the past and slopes[1, h] of the future. A head of slope 0 has no
// bias.
#include "relpos/scheme.h"
#include "schemes/common/slopes.h"

namespace relpos {

namespace {

struct ALiBi {
  int64_t heads = 0;
  std::variant<std::string, std::vector<double>> slopes = "paper";
  std::string sides = "same";
  bool symmetric = true, learned = false;

  void options(OptionList& o) {
    o.required("heads", heads, "query heads");
    o.keyword_only();
    o.choice_or_values(
        "slopes", slopes, {"paper", "geometric"},
        "the paper's rule for any head count, 2^(-8h/heads) for every one, or numbers");
    o.flag("symmetric", symmetric, "the future is penalised as the past; else its bias is 0");
    o.flag("learned", learned, "train the slopes");
    o.choice("sides", sides, {"same", "own"},
             "past and future share a slope, or have slopes of their own, [2, heads]");
  }

  std::vector<double> initial(const Builder& b, bool own) const {
    if (const auto* numbers = std::get_if<std::vector<double>>(&slopes)) {
      const auto given = static_cast<int64_t>(numbers->size());
      b.require(given == heads || (own && given == 2 * heads),
                "slopes: expected one number for each of heads=", heads,
                own ? ", or for the past and then for the future, got " : ", got ", given);
      return given == heads && own ? twice(*numbers) : *numbers;
    }
    const std::vector<double> rule = std::get<std::string>(slopes) == "paper"
                                         ? common::paper_slopes(heads)
                                         : common::geometric_slopes(heads);
    return own ? twice(rule) : rule;
  }

  static std::vector<double> twice(std::vector<double> numbers) {
    const std::vector<double> same = numbers;
    numbers.insert(numbers.end(), same.begin(), same.end());
    return numbers;
  }

  void terms(Builder& b) const {
    const char* doc = "how fast each head's penalty grows with the distance";
    const bool own = sides == "own";
    b.require(symmetric || !own, "sides: expected 'same' with symmetric=False, got 'own'");
    const Init init = Init::each(initial(b, own));
    const std::vector<int64_t> shape =
        own ? std::vector<int64_t>{2, heads} : std::vector<int64_t>{heads};
    const Source slope =
        learned ? b.parameter("slopes", shape, init, doc) : b.fixed("slopes", shape, init, doc);
    if (own) {
      b.slopes(slope[0], -slope[1]);
    } else {
      b.slopes(slope, symmetric ? std::optional(-slope) : std::nullopt);
    }
  }
};

}  // namespace

RELPOS_SCHEME(alibi, ALiBi, "ALiBi",
              "a penalty that grows linearly with the distance, with a slope for each head",
              "Press, Smith, Lewis 2022, Train Short, Test Long, section 3")

}  // namespace relpos
