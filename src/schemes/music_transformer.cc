// Huang et al. 2018 (Music Transformer): a row of its own for every distance, none beyond the table.
//
//   score[i,j] = scale <q_i, k_j + Er[max_length - 1 + pos_k - pos_q]>
//
// The last row belongs to distance 0. Where the table has no row (the future, or farther back than
// max_length - 1) the second term is 0.
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "relpos/scheme.h"
#include "schemes/common/checks.h"

namespace relpos {

namespace {

constexpr const char* kName = "music_transformer";

int64_t farthest(const OptionMap& options) {
  return common::size_option(kName, options, "max_length") - 1;
}

ClassMap class_map(const OptionMap& options) {
  const int64_t last = options.flag("bidirectional") ? farthest(options) : 0;
  return ClassMap::zero_outside(-farthest(options), last);
}

std::vector<ParameterSpec> parameters(const OptionMap& options) {
  const int64_t head_dim = common::size_option(kName, options, "head_dim");
  const double deviation = 1.0 / std::sqrt(static_cast<double>(head_dim));
  return {{"Er",
           common::table_shape(kName, options, class_map(options).classes(), head_dim),
           Init::normal(deviation),
           true,
           "one row for each distance, farthest past first",
           {{"tensor2tensor", "key_relative_embeddings"}}}};
}

void lower(const Setting& setting, Terms& terms) {
  const OptionMap& options = setting.options;
  common::check_fits(kName, "head_dim", options.integer("head_dim"), setting.head_dim);
  if (options.has("heads")) {
    common::check_fits(kName, "heads", options.integer("heads"), setting.heads);
  }
  RowTable rows;
  rows.map = class_map(options);
  rows.table = TermData::parameter(setting.parameters[0], setting.wants_gradient[0]);
  terms.row_tables.push_back(std::move(rows));
}

void pull_back(const Setting&, const TermGradients& gradients,
               std::vector<std::vector<double>>& sums) {
  common::add_into(sums[0], gradients.row_tables[0].table);
}

}  // namespace

namespace schemes_impl {

Scheme music_transformer() {
  Scheme scheme;
  scheme.name = kName;
  scheme.class_name = "MusicTransformer";
  scheme.summary = "a learned row for every distance up to max_length, none beyond";
  scheme.source =
      "Huang et al. 2018, Music Transformer, 3.4; tensor2tensor dot_product_relative_v2";
  scheme.options = {
      {.name = "max_length",
       .type = OptionType::kInt,
       .required = true,
       .positional = true,
       .doc = "distances 0 to max_length - 1 have rows"},
      {.name = "head_dim",
       .type = OptionType::kInt,
       .required = true,
       .positional = true,
       .doc = "size of a query and key head"},
      {.name = "heads",
       .type = OptionType::kInt,
       .doc = "tables of their own for so many heads; None: one table for all heads"},
      {.name = "bidirectional",
       .type = OptionType::kBool,
       .fallback = false,
       .doc = "rows for the future, too: 2 max_length - 1 rows"},
  };
  scheme.parameters = parameters;
  scheme.lower = lower;
  scheme.pull_back = pull_back;
  return scheme;
}

}  // namespace schemes_impl

}  // namespace relpos
