// A learned number for each head and clipped distance (the scalar form of Shaw et al. 2018).
//
//   score[h,i,j] += biases[h, clamp(pos_q - pos_k, -(r - 1), r - 1) + r - 1],  r = max_distance
#include "relpos/scheme.h"
#include "schemes/common/checks.h"
#include "schemes/common/steps.h"

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

std::vector<Step> steps(const Setting& setting, const Grid& grid) {
  const ClassMap map = class_map(setting.options);
  const TensorView& biases = setting.parameters[0];
  return {
      common::arange("pos_q", grid.q_offset, grid.queries),
      common::arange("pos_k", 0, grid.keys),
      common::pairwise("rel_pos", Step::Kind::kInteger, grid,
                       [](int64_t q, int64_t k) { return q - k; }),
      common::pairwise("rel_pos.clamp(-r_max + 1, r_max - 1) + r_max - 1", Step::Kind::kInteger,
                       grid, [&](int64_t q, int64_t k) { return map(k - q); }),
      common::pairwise_per_head(
          "biases[:, rel_pos]", setting.options.integer("heads"), grid,
          [&](int64_t h, int64_t q, int64_t k) { return biases.at({h, map(k - q)}); }),
  };
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
  scheme.steps = steps;
  return scheme;
}

}  // namespace schemes_impl

}  // namespace relpos
