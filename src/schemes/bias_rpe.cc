// A learned number for each head and clipped distance (the scalar form of Shaw et al. 2018).
//
//   score[h,i,j] += biases[h, clamp(pos_q - pos_k, -(r - 1), r - 1) + r - 1],  r = max_distance
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "relpos/scheme.h"
#include "schemes/common/checks.h"

namespace relpos {

namespace {

constexpr const char* kName = "bias_rpe";

int64_t farthest(const OptionMap& options) {
  return common::size_option(kName, options, "max_distance") - 1;
}

ClassMap class_map(const OptionMap& options) {
  return ClassMap::clamp(-farthest(options), farthest(options), /*reversed=*/true);
}

std::vector<ParameterSpec> parameters(const OptionMap& options) {
  const std::vector<int64_t> shape = {common::size_option(kName, options, "heads"),
                                      2 * farthest(options) + 1};
  checked_numel(shape, kName);
  return {{"biases", shape, Init::constant(0.0), true,
           "one number for each head and distance, farthest future first"}};
}

void lower(const Setting& setting, Terms& terms) {
  common::check_fits(kName, "heads", setting.options.integer("heads"), setting.heads);
  DistanceBias bias;
  bias.map = class_map(setting.options);
  bias.table = TermData::parameter(setting.parameters[0], setting.wants_gradient[0]);
  terms.biases.push_back(std::move(bias));
}

void pull_back(const Setting&, const TermGradients& gradients,
               std::vector<std::vector<double>>& sums) {
  common::add_into(sums[0], gradients.biases[0].table);
}

}  // namespace

namespace schemes_impl {

Scheme bias_rpe() {
  Scheme scheme;
  scheme.name = kName;
  scheme.class_name = "BiasRPE";
  scheme.summary = "a learned number for each head and clipped distance";
  scheme.source = "Geron 2025, Hands-On Machine Learning, appendix D; after Shaw et al. 2018, 3.2";
  scheme.options = {
      {.name = "heads",
       .type = OptionType::kInt,
       .required = true,
       .positional = true,
       .doc = "query heads"},
      {.name = "max_distance",
       .type = OptionType::kInt,
       .required = true,
       .positional = true,
       .doc = "distances from max_distance - 1 on share one number"},
  };
  scheme.parameters = parameters;
  scheme.lower = lower;
  scheme.pull_back = pull_back;
  return scheme;
}

}  // namespace schemes_impl

}  // namespace relpos
