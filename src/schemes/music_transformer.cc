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
#include "schemes/common/readings.h"
#include "schemes/common/steps.h"

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

// The skew of the paper on Q Er^T of `length` queries, every product shown by its place 1, 2, ... in
// the matrix: above the diagonal S_rel holds 0 and then the next query's products, wrapped around.
void append_skew(std::vector<Step>& road, int64_t length, int64_t rows) {
  const auto matrix = [&](const char* name, int64_t height, int64_t width, auto cell) {
    Step step = common::empty_step(name, Step::Kind::kInteger, {height, width});
    for (int64_t i = 0; i < height; ++i) {
      for (int64_t j = 0; j < width; ++j) step.values.push_back(static_cast<double>(cell(i, j)));
    }
    road.push_back(std::move(step));
  };
  const auto product = [&](int64_t i, int64_t j) {
    return j < length - rows ? 0 : i * length + j + 1;  // zero where the table has no row
  };
  const auto padded = [&](int64_t i, int64_t j) { return j == 0 ? 0 : product(i, j - 1); };
  const auto reshaped = [&](int64_t i, int64_t j) {
    const int64_t place = i * length + j;
    return padded(place / (length + 1), place % (length + 1));
  };
  const auto skewed = [&](int64_t i, int64_t j) { return reshaped(i + 1, j); };
  matrix("QEr", length, length, product);
  matrix("padded_QEr", length, length + 1, padded);
  matrix("reshaped_QEr", length + 1, length, reshaped);
  matrix("S_rel", length, length, skewed);
  matrix("S_rel.tril()", length, length,
         [&](int64_t i, int64_t j) { return j <= i ? skewed(i, j) : 0; });
}

std::vector<Step> steps(const Setting& setting, const Grid& grid) {
  const ClassMap map = class_map(setting.options);
  std::vector<Step> road = {common::arange("positions", 0, grid.keys)};
  const bool square = grid.queries == grid.keys && grid.q_offset == 0;
  if (square && !setting.options.flag("bidirectional")) {
    append_skew(road, grid.keys, map.classes());
  }
  road.push_back(common::pairwise("relative_positions", Step::Kind::kInteger, grid,
                                  [](int64_t q, int64_t k) { return k - q; }));
  road.push_back(common::pairwise("rows of Er, -1 for none", Step::Kind::kInteger, grid,
                                  [&](int64_t q, int64_t k) { return map(k - q); }));
  return road;
}

std::vector<Reading> table_readings(const Specimen& specimen) {
  const OptionMap& given = specimen.given;
  const int rank = specimen.values.rank;
  const int64_t heads = rank == 3 ? common::size(specimen, 0) : 0;
  std::vector<Reading> readings;
  if (given.has("heads") && given.integer("heads") != heads) return readings;
  const bool told = given.has("max_length") || given.has("head_dim");
  for (const bool transposed : {false, true}) {
    if (transposed && !told) continue;  // any number of rows is a table
    const int64_t rows = common::size(specimen, transposed ? -1 : -2);
    const int64_t columns = common::size(specimen, transposed ? -2 : -1);
    for (const bool both : {false, true}) {
      const int64_t length = both ? (rows + 1) / 2 : rows;
      if ((both && rows % 2 == 0) || !common::agrees(given, "bidirectional", both) ||
          !common::agrees(given, "max_length", length) ||
          !common::agrees(given, "head_dim", columns)) {
        continue;
      }
      for (const bool mirrored : {false, true}) {
        Reading reading;
        reading.convention = std::string("table ") + (rank == 3 ? "[heads, " : "[") +
                             (transposed ? "head_dim, rows] (transposed), " : "rows, head_dim], ") +
                             (both ? "two directions, " : "the past alone, ") +
                             (mirrored ? both ? "farthest future first" : "distance 0 first"
                                       : "farthest past first");
        if (!mirrored) {
          reading.options = {
              {"max_length", length}, {"head_dim", columns}, {"bidirectional", both}};
          if (rank == 3) reading.options.insert(reading.options.begin() + 2, {"heads", heads});
        }
        reading.note =
            std::string(transposed ? "transpose it first; " : "") +
            (mirrored ? "flip the rows first" : "the order of tensor2tensor and the paper") +
            "; values cannot tell";
        readings.push_back(std::move(reading));
      }
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
  for (const auto& [lay, zero] : common::lays_by_zero(values)) {
    if (!common::agrees(specimen.given, "max_length", zero + 1)) continue;
    for (const bool both : {false, true}) {
      if (!common::agrees(specimen.given, "bidirectional", both)) continue;
      readings.push_back(
          {"rows " + lay.text + (both ? ", two directions" : ", the past alone") + ", -1 for none",
           {{"max_length", zero + 1}, {"bidirectional", both}},
           common::classes(lay, ClassMap::zero_outside(-zero, both ? zero : 0))});
    }
  }
  return readings;
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
  scheme.steps = steps;
  scheme.recognition = {
      .names = {"Er", "key_relative_embeddings"},
      .shapes =
          "table [(heads,) max_length, head_dim], 2 max_length - 1 rows for two directions; "
          "integer rows [Lq, Lk]",
      .readings = readings};
  return scheme;
}

}  // namespace schemes_impl

}  // namespace relpos
