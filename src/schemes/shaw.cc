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

namespace relpos {

namespace {

constexpr const char* kName = "shaw";
constexpr size_t kKeyTable = 0, kValueTable = 1;

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
  return scheme;
}

}  // namespace schemes_impl

}  // namespace relpos
