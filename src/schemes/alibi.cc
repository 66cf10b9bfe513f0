// Press, Smith, Lewis 2022 (ALiBi): a penalty that grows linearly with the distance.
//
//   score[h,i,j] += -slopes[h] |pos_k - pos_q|     symmetric; with symmetric=False 0 for the future
#include "relpos/scheme.h"
#include "schemes/common/slopes.h"

namespace relpos {

namespace {

struct ALiBi {
  int64_t heads = 0;
  std::variant<std::string, std::vector<double>> slopes = "paper";
  bool symmetric = true, learned = false;

  void options(OptionList& o) {
    o.required("heads", heads, "query heads");
    o.keyword_only();
    o.choice_or_values(
        "slopes", slopes, {"paper", "geometric"},
        "the paper's rule for any head count, 2^(-8h/heads) for every one, or numbers");
    o.flag("symmetric", symmetric, "the future is penalised as the past; else its bias is 0");
    o.flag("learned", learned, "train the slopes");
  }

  std::vector<double> initial(const Builder& b) const {
    if (const auto* numbers = std::get_if<std::vector<double>>(&slopes)) {
      b.require(static_cast<int64_t>(numbers->size()) == heads,
                "slopes: expected one number for each of heads=", heads, ", got ", numbers->size());
      return *numbers;
    }
    return std::get<std::string>(slopes) == "paper" ? common::paper_slopes(heads)
                                                    : common::geometric_slopes(heads);
  }

  void terms(Builder& b) const {
    const char* doc = "how fast each head's penalty grows with the distance";
    const Init init = Init::each(initial(b));
    const Source slope =
        learned ? b.parameter("slopes", {heads}, init, doc) : b.fixed("slopes", {heads}, init, doc);
    b.slopes(slope, symmetric ? std::optional(-slope) : std::nullopt);
  }
};

}  // namespace

RELPOS_SCHEME(alibi, ALiBi, "ALiBi",
              "a penalty that grows linearly with the distance, with a slope for each head",
              "Press, Smith, Lewis 2022, Train Short, Test Long, section 3")

}  // namespace relpos
