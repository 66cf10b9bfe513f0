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
#include "schemes/common/slopes.h"

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
  return scheme;
}

}  // namespace schemes_impl

}  // namespace relpos
