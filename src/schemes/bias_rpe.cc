// A learned number for each head and clipped distance (the scalar form of Shaw et al. 2018).
//
//   score[h,i,j] += biases[h, clamp(pos_q - pos_k, -(r - 1), r - 1) + r - 1],  r = max_distance
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "relpos/scheme.h"
#include "schemes/common/checks.h"
#include "schemes/common/readings.h"
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

// What is left of a side that no pair of a causal training ever reads.
std::string side_note(const Specimen& specimen, int axis, bool mirrored) {
  const int64_t count = common::size(specimen, axis), middle = count / 2;
  const double first = common::mean_magnitude(specimen.values, axis, 0, middle);
  const double last = common::mean_magnitude(specimen.values, axis, middle + 1, count);
  const double future = mirrored ? last : first, past = mirrored ? first : last;
  if (future == 0 && past > 0)
    return "; the future's numbers are all 0, as causal training leaves them";
  if (past == 0 && future > 0)
    return "; but then the past was never trained: its numbers are all 0";
  return "; values cannot tell";
}

std::vector<Reading> table_readings(const Specimen& specimen) {
  std::vector<Reading> readings;
  for (const int axis : {1, 0}) {
    const int64_t count = common::size(specimen, axis), heads = common::size(specimen, 1 - axis);
    const int64_t reach = (count + 1) / 2;
    if (count % 2 == 0 || !common::agrees(specimen.given, "heads", heads) ||
        !common::agrees(specimen.given, "max_distance", reach)) {
      continue;
    }
    for (const bool mirrored : {false, true}) {
      Reading reading;
      reading.convention =
          std::string(axis == 1 ? "table [heads, 2 max_distance - 1], "
                                : "table [2 max_distance - 1, heads] (transposed), ") +
          (mirrored ? "farthest past first (key - query)" : "farthest future first (query - key)");
      if (!mirrored) reading.options = {{"heads", heads}, {"max_distance", reach}};
      reading.note = std::string(axis == 1 ? "" : "transpose it first; ") +
                     (mirrored ? "flip the distances first" : "the order here") +
                     side_note(specimen, axis, mirrored);
      readings.push_back(std::move(reading));
    }
  }
  return readings;
}

std::vector<Reading> readings(const Specimen& specimen) {
  const TensorView& values = specimen.values;
  if (specimen.given.has("max_distance")) farthest(specimen.given);
  if (values.rank == 2 && !common::is_integer(specimen)) return table_readings(specimen);
  std::vector<Reading> readings;
  for (const auto& [lay, farther] : common::lays_by_zero(values)) {
    if (!common::agrees(specimen.given, "max_distance", farther + 1)) continue;
    for (const bool mirrored : {false, true}) {
      Reading reading{"classes " + lay.text + (mirrored ? ", key - query" : ", query - key")};
      if (!mirrored) reading.options = {{"max_distance", farther + 1}};
      reading.expected =
          common::classes(lay, ClassMap::clamp(-farther, farther, /*reversed=*/!mirrored));
      if (mirrored) reading.note = "the table's order is the other one: flip it first";
      readings.push_back(std::move(reading));
    }
  }
  if (values.rank == 3 && !common::is_integer(specimen) &&
      common::agrees(specimen.given, "heads", values.shape[0])) {
    const bool known = specimen.given.has("max_distance");
    const int64_t reach =
        known ? specimen.given.integer("max_distance") : std::max(values.shape[1], values.shape[2]);
    const ClassMap map = ClassMap::clamp(1 - reach, reach - 1, /*reversed=*/true);
    for (const common::Lay& lay : common::lays(values.shape[1], values.shape[2], false)) {
      readings.push_back({"bias [heads, ...], one number for each distance" +
                              (known ? ", clipped, " + lay.text : std::string()),
                          {{"heads", values.shape[0]}, {"max_distance", reach}},
                          common::constant_on_classes(values, false, lay, map),
                          "whether it is transposed, a bias of learned numbers does not tell"});
      if (!known) break;  // unclipped, every alignment is one number for each distance
    }
  }
  return readings;
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
  scheme.recognition = {
      .names = {"biases"},
      .shapes =
          "table [heads, 2 max_distance - 1] or its transpose; integer classes [Lq, Lk]; bias "
          "[heads, Lq, Lk]",
      .readings = readings};
  return scheme;
}

}  // namespace schemes_impl

}  // namespace relpos
