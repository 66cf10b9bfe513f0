// Shaw, Uszkoreit, Vaswani 2018: rows for clipped distances join the keys and the values.
//
//   score[i,j] = scale <q_i, k_j + key_table[m]>     out[i] = sum_j P[i,j] (v_j + value_table[m])
//   m = clamp(pos_k - pos_q, -max_distance, max_distance) + max_distance
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

constexpr const char* kName = "shaw";
constexpr size_t kKeyTable = 0, kValueTable = 1;
constexpr int64_t kSmall = 4096;  // numbers of gathered rows that `steps` still lists

int64_t max_distance(const OptionMap& options) {
  return common::size_option(kName, options, "max_distance", 0);
}

bool query_minus_key(const OptionMap& options) { return options.text("distance") == "query-key"; }

ClassMap class_map(const OptionMap& options) {
  const int64_t m = max_distance(options);
  return ClassMap::clamp(-m, m, query_minus_key(options));
}

int64_t value_dim(const OptionMap& options) {
  return common::size_option(kName, options, options.has("value_dim") ? "value_dim" : "head_dim");
}

std::vector<ParameterSpec> parameters(const OptionMap& options) {
  const int64_t rows = 2 * max_distance(options) + 1;
  const bool mirrored = query_minus_key(options);
  const auto table = [&](const char* name, int64_t columns, const char* doc,
                         std::vector<Origin> origins) {
    const bool uniform = options.text("init") == "xavier_uniform";
    return ParameterSpec{
        name,
        common::table_shape(kName, options, rows, columns),
        uniform ? Init::glorot_uniform(rows, columns) : Init::glorot_normal(rows, columns),
        true,
        doc,
        std::move(origins)};
  };
  const std::vector<Origin> of_queries = {{"bert", "distance_embedding.weight"},
                                          {"notebooks", "embeddings_table"},
                                          {"notebooks", "embedding.weight"}};
  const std::vector<Origin> of_keys = {{"tensor2tensor", "relative_positions_keys/embeddings"}};
  std::vector<ParameterSpec> specs = {
      table("key_table", common::size_option(kName, options, "head_dim"), "rows that join the keys",
            mirrored ? of_queries : of_keys)};
  if (options.flag("values")) {
    std::vector<Origin> of_values;
    if (!mirrored) of_values = {{"tensor2tensor", "relative_positions_values/embeddings"}};
    specs.push_back(
        table("value_table", value_dim(options), "rows that join the values", of_values));
  }
  return specs;
}

void lower(const Setting& setting, Terms& terms) {
  const OptionMap& options = setting.options;
  common::check_fits(kName, "head_dim", options.integer("head_dim"), setting.head_dim);
  if (options.has("heads")) {
    common::check_fits(kName, "heads", options.integer("heads"), setting.heads);
  }
  const ClassMap map = class_map(options);
  RowTable keys;
  keys.map = map;
  keys.table =
      TermData::parameter(setting.parameters[kKeyTable], setting.wants_gradient[kKeyTable]);
  terms.row_tables.push_back(std::move(keys));
  if (options.flag("values")) {
    common::check_fits(kName, "value_dim", value_dim(options), setting.value_dim);
    terms.value_tables.push_back({map, TermData::parameter(setting.parameters[kValueTable],
                                                           setting.wants_gradient[kValueTable])});
  }
}

void pull_back(const Setting& setting, const TermGradients& gradients,
               std::vector<std::vector<double>>& sums) {
  common::add_into(sums[kKeyTable], gradients.row_tables[0].table);
  if (setting.options.flag("values")) {
    common::add_into(sums[kValueTable], gradients.value_tables[0].table);
  }
}

// [(H,) Lq, Lk, D]: the row of each pair.
Step gathered(const TensorView& table, const Step& classes) {
  const bool per_head = table.rank == 3;
  const int64_t heads = per_head ? table.shape[0] : 1;
  const int64_t columns = table.shape[static_cast<size_t>(table.rank - 1)];
  std::vector<int64_t> shape = {classes.shape[0], classes.shape[1], columns};
  if (per_head) shape.insert(shape.begin(), heads);
  Step step = common::empty_step(
      per_head ? "embeddings_table[:, final_mat]" : "embeddings_table[final_mat]",
      Step::Kind::kReal, std::move(shape));
  for (int64_t h = 0; h < heads; ++h) {
    for (double row : classes.values) {
      const auto m = static_cast<int64_t>(row);
      for (int64_t c = 0; c < columns; ++c) {
        step.values.push_back(per_head ? table.at({h, m, c}) : table.at({m, c}));
      }
    }
  }
  return step;
}

std::vector<Step> steps(const Setting& setting, const Grid& grid) {
  const OptionMap& options = setting.options;
  const auto m = static_cast<double>(max_distance(options));
  const bool reversed = query_minus_key(options);
  const ClassMap map = class_map(options);
  std::vector<Step> road = {
      common::arange("range_vec_q", grid.q_offset, grid.queries),
      common::arange("range_vec_k", 0, grid.keys),
      common::pairwise("distance_mat", Step::Kind::kInteger, grid,
                       [&](int64_t q, int64_t k) { return reversed ? q - k : k - q; }),
  };
  road.push_back(common::each("distance_mat_clipped", Step::Kind::kInteger, road.back(),
                              [&](double x) { return std::clamp(x, -m, m); }));
  road.push_back(common::pairwise("final_mat", Step::Kind::kInteger, grid,
                                  [&](int64_t q, int64_t k) { return map(k - q); }));
  const int64_t heads = options.has("heads") ? options.integer("heads") : 1;
  if (grid.queries * grid.keys <= kSmall / (heads * options.integer("head_dim"))) {
    road.push_back(gathered(setting.parameters[kKeyTable], road.back()));
  }
  return road;
}

constexpr int64_t kW2vBertRows = 73;  // distances -64 to 8

// What the name of a tensor says of its row order; null: nothing.
const char* order_of(const std::string& name) {
  if (name.find("distance_embedding") != std::string::npos) return "query-key";  // BERT's own
  if (name.find("relative_positions_") != std::string::npos) return "key-query";
  return nullptr;
}

std::vector<Reading> table_readings(const Specimen& specimen) {
  const OptionMap& given = specimen.given;
  const int rank = specimen.values.rank;
  std::vector<Reading> readings;
  const int64_t heads = rank == 3 ? common::size(specimen, 0) : 0;
  if (given.has("heads") && given.integer("heads") != heads) return readings;
  for (const bool transposed : {false, true}) {
    const int64_t rows = common::size(specimen, transposed ? -1 : -2);
    const int64_t columns = common::size(specimen, transposed ? -2 : -1);
    const int64_t farthest = rows / 2;
    const bool told = given.has("max_distance") || given.has("head_dim");
    // Without either, heads of an even size are likelier than tables of an even number of rows.
    if (rows % 2 == 0 || (!told && transposed && columns % 2 != 0) ||
        !common::agrees(given, "max_distance", farthest) ||
        !common::agrees(given, "head_dim", columns)) {
      continue;
    }
    const char* named = order_of(specimen.name);
    const std::string first = named == nullptr ? "key-query" : named;
    for (const std::string& order :
         {first, std::string(first[0] == 'k' ? "query-key" : "key-query")}) {
      if (!common::agrees(given, "distance", order.c_str())) continue;
      Reading reading;
      reading.convention = std::string("table ") + (rank == 3 ? "[heads, " : "[") +
                           (transposed ? "head_dim, 2 max_distance + 1] (transposed), "
                                       : "2 max_distance + 1, head_dim], ") +
                           (order == "key-query" ? "farthest past first (key - query)"
                                                 : "farthest future first (query - key)");
      reading.options = {{"max_distance", farthest}, {"head_dim", columns}, {"distance", order}};
      if (rank == 3) reading.options.insert(reading.options.begin() + 2, {"heads", heads});
      reading.note = transposed ? "transpose it first; " : "";
      reading.note += named == nullptr ? "values cannot tell the order of the rows"
                      : order == first ? "the order of code that has tensors of this name"
                                       : "but code with tensors of this name has the other order";
      readings.push_back(std::move(reading));
    }
    if (rows == kW2vBertRows && !transposed) {
      readings.push_back({"table of distances -64 to 8 (w2v-BERT 2.0, Seamless)",
                          {},
                          {},
                          "shaw clips both sides alike: it has no option for this one"});
    }
  }
  return readings;
}

std::vector<Reading> readings(const Specimen& specimen) {
  const TensorView& values = specimen.values;
  if (!common::is_integer(specimen)) {
    return values.rank == 2 || values.rank == 3 ? table_readings(specimen) : std::vector<Reading>();
  }
  std::vector<Reading> readings;
  for (const auto& [lay, m] : common::lays_by_zero(values)) {
    if (!common::agrees(specimen.given, "max_distance", m)) continue;
    for (const char* order : {"key-query", "query-key"}) {
      if (!common::agrees(specimen.given, "distance", order)) continue;
      readings.push_back({std::string("rows ") + lay.text + ", counted by " + order,
                          {{"max_distance", m}, {"distance", order}},
                          common::classes(lay, ClassMap::clamp(-m, m, order[0] == 'q'))});
    }
  }
  return readings;
}

}  // namespace

namespace schemes_impl {

Scheme shaw() {
  Scheme scheme;
  scheme.name = kName;
  scheme.class_name = "Shaw";
  scheme.summary = "learned rows of clipped distances join the keys and the values";
  scheme.source =
      "Shaw, Uszkoreit, Vaswani 2018, Self-Attention with Relative Position Representations, 3.2";
  scheme.options = {
      {.name = "max_distance",
       .type = OptionType::kInt,
       .required = true,
       .positional = true,
       .doc = "distances beyond it share its row"},
      {.name = "head_dim",
       .type = OptionType::kInt,
       .required = true,
       .positional = true,
       .doc = "size of a query and key head"},
      {.name = "heads",
       .type = OptionType::kInt,
       .doc = "tables of their own for so many heads; None: one table for all heads"},
      {.name = "values",
       .type = OptionType::kBool,
       .fallback = true,
       .doc = "rows for the values, too"},
      {.name = "value_dim",
       .type = OptionType::kInt,
       .doc = "size of a value head; None: head_dim"},
      {.name = "distance",
       .type = OptionType::kChoice,
       .fallback = "key-query",
       .choices = {"key-query", "query-key"},
       .doc = "row 0 is the farthest past (key-query) or the farthest future (query-key)"},
      {.name = "init",
       .type = OptionType::kChoice,
       .fallback = "xavier_uniform",
       .choices = {"xavier_uniform", "xavier_normal"},
       .doc = "Glorot initialisation of each table, of each head's where heads is given"},
  };
  scheme.parameters = parameters;
  scheme.lower = lower;
  scheme.pull_back = pull_back;
  scheme.steps = steps;
  scheme.recognition = {
      .names = {"key_table", "value_table", "relative_positions_keys/embeddings",
                "relative_positions_values/embeddings", "distance_embedding.weight",
                "embeddings_table"},
      .shapes =
          "table [(heads,) 2 max_distance + 1, head_dim] or its transpose; integer rows "
          "[Lq, Lk]",
      .readings = readings};
  return scheme;
}

}  // namespace schemes_impl

}  // namespace relpos
