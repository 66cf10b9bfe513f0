// Raffel et al. 2020 (T5): a learned number for each head and bucket of distances.
//
//   score[h,i,j] += scale weight[bucket(pos_k - pos_q), h]
#include <algorithm>
#include <cmath>

#include "relpos/scheme.h"
#include "schemes/common/buckets.h"
#include "schemes/common/checks.h"
#include "schemes/common/readings.h"
#include "schemes/common/steps.h"

namespace relpos {

namespace {

constexpr const char* kName = "t5";

common::Buckets bucketing(const OptionMap& options) {
  return {kName, common::size_option(kName, options, "buckets"),
          common::size_option(kName, options, "max_distance"), options.flag("bidirectional")};
}

std::vector<ParameterSpec> parameters(const OptionMap& options) {
  bucketing(options);
  const int64_t buckets = options.integer("buckets");
  const int64_t heads = common::size_option(kName, options, "heads");
  const std::vector<int64_t> shape = {buckets, heads};
  checked_numel(shape, kName);
  return {{"relative_attention_bias.weight",
           shape,
           Init::glorot_uniform(buckets, heads),
           true,
           "one number for each bucket and head. Glorot as in the authors' t5x: the N(0, 1 / "
           "d_model) of other ports needs the width of a model, and nn.Embedding's N(0, 1) is as "
           "large as the scores it joins",
           {{"t5x", "rel_embedding", true},
            {"mesh", "relative_attention_bias", true},
            {"notebooks", "relative_position_bias.weight"},
            {"notebooks", "relative_attention_embedding.weight"},
            {"notebooks", "rel_pos_embeddings.weight"}}}};
}

void lower(const Setting& setting, Terms& terms) {
  const OptionMap& options = setting.options;
  common::check_fits(kName, "heads", options.integer("heads"), setting.heads);
  TensorView by_head = setting.parameters[0];
  std::swap(by_head.shape[0], by_head.shape[1]);
  std::swap(by_head.strides[0], by_head.strides[1]);
  DistanceBias bias;
  bias.map = bucketing(options).map();
  bias.table = TermData::parameter(by_head, setting.wants_gradient[0], options.number("scale"));
  terms.biases.push_back(std::move(bias));
}

void pull_back(const Setting& setting, const TermGradients& gradients,
               std::vector<std::vector<double>>& sums) {
  const std::vector<double>& by_head = gradients.biases[0].table;
  const auto buckets = static_cast<size_t>(setting.options.integer("buckets"));
  const auto heads = static_cast<size_t>(setting.options.integer("heads"));
  if (sums[0].empty()) return;
  for (size_t h = 0; h < heads; ++h) {
    for (size_t m = 0; m < buckets; ++m) sums[0][m * heads + h] += by_head[h * buckets + m];
  }
}

std::vector<Step> steps(const Setting& setting, const Grid& grid) {
  const OptionMap& options = setting.options;
  const common::Buckets buckets = bucketing(options);
  const ClassMap map = buckets.map();
  const bool two_sided = options.flag("bidirectional");
  const auto integer = Step::Kind::kInteger;
  const auto whole = [](double x) { return static_cast<int64_t>(x); };

  std::vector<Step> road = {
      common::arange("q_pos", grid.q_offset, grid.queries),
      common::arange("k_pos", 0, grid.keys),
      common::pairwise("rel_pos", integer, grid, [](int64_t q, int64_t k) { return k - q; }),
      common::pairwise("n", integer, grid, [](int64_t q, int64_t k) { return q - k; }),
  };
  const Step signed_n = road.back();
  if (two_sided) {
    road.push_back(common::each("(n < 0) * num_buckets", integer, signed_n,
                                [&](double n) { return n < 0 ? buckets.per_side() : 0; }));
    road.push_back(common::each("abs(n)", integer, signed_n, [](double n) { return std::abs(n); }));
  } else {
    road.push_back(
        common::each("max(n, 0)", integer, signed_n, [](double n) { return std::max(n, 0.0); }));
  }
  const Step n = road.back();
  road.push_back(common::each("is_small", Step::Kind::kBoolean, n,
                              [&](double x) { return whole(x) < buckets.max_exact(); }));
  road.push_back(common::each("val_if_large", Step::Kind::kReal, n,
                              [&](double x) { return buckets.value_if_large(whole(x)); }));
  road.push_back(common::each("val_if_large.long()", integer, n,
                              [&](double x) { return buckets.whole_if_large(whole(x)); }));
  road.push_back(common::each("min(val_if_large, num_buckets - 1)", integer, n, [&](double x) {
    return std::min(buckets.whole_if_large(whole(x)), buckets.per_side() - 1);
  }));
  road.push_back(common::pairwise("position_bucket_indices", integer, grid,
                                  [&](int64_t q, int64_t k) { return map(k - q); }));
  const TensorView& weight = setting.parameters[0];
  const double scale = options.number("scale");
  road.push_back(common::pairwise_per_head(
      "relative_position_values", options.integer("heads"), grid,
      [&](int64_t h, int64_t q, int64_t k) { return scale * weight.at({map(k - q), h}); }));
  return road;
}

struct Size {
  int64_t buckets, max_distance;
};

// Of published models (T5 and its kin, LayoutLM's two axes, WavLM, CPM-Ant), and of the notebooks.
constexpr Size kSizes[] = {{32, 128}, {64, 256}, {320, 800}, {512, 2048}, {6, 20}};

std::vector<Size> sizes(const OptionMap& given) {
  std::vector<Size> open;
  for (const Size& size : kSizes) {
    if (common::agrees(given, "buckets", size.buckets) &&
        common::agrees(given, "max_distance", size.max_distance)) {
      open.push_back(size);
    }
  }
  if (!open.empty()) return open;
  return {{given.has("buckets") ? given.integer("buckets") : 32,
           given.has("max_distance") ? given.integer("max_distance") : 128}};
}

bool is_published(int64_t buckets) {
  return std::ranges::any_of(
      kSizes, [&](const Size& size) { return size.buckets == buckets && buckets >= 32; });
}

const char* directions(bool both) { return both ? "two directions" : "one direction"; }

// One class map of the sizes and directions left open, each map once for distances within `reach`.
struct Candidate {
  Size size;
  bool both;
  ClassMap map;
};

std::vector<Candidate> candidates(const OptionMap& given, int64_t reach) {
  std::vector<Candidate> all;
  std::vector<std::vector<int64_t>> seen;
  for (const Size& size : sizes(given)) {
    for (const bool both : {true, false}) {
      if (!common::agrees(given, "bidirectional", both) || (both && size.buckets % 2 != 0))
        continue;
      ClassMap map = common::Buckets(kName, size.buckets, size.max_distance, both).map();
      std::vector<int64_t> row;
      for (int64_t delta = -reach; delta <= reach; ++delta) row.push_back(map(delta));
      if (std::ranges::find(seen, row) != seen.end()) continue;
      seen.push_back(std::move(row));
      all.push_back({size, both, std::move(map)});
    }
  }
  return all;
}

// What speaks for one direction or two in a learned table.
std::string direction_note(const Specimen& specimen, int axis, bool both) {
  const bool encoder = specimen.name.find("encoder") != std::string::npos;
  const bool decoder = specimen.name.find("decoder") != std::string::npos;
  std::string note;
  if (encoder != decoder) {
    note = std::string("its name says ") + (encoder ? "encoder" : "decoder") + ", T5's have " +
           directions(encoder) + "; ";
  }
  const int64_t middle = common::size(specimen, axis) / 2;
  note += both ? "no pair reads row " + std::to_string(middle) : "every row is read";
  return note + "; values cannot tell, nor max_distance (T5: 128): see the model's config";
}

std::vector<Reading> table_readings(const Specimen& specimen) {
  const int64_t rows = common::size(specimen, 0), columns = common::size(specimen, 1);
  const bool known = specimen.given.has("buckets") || specimen.given.has("heads");
  const bool told = !known && is_published(rows) != is_published(columns);
  const bool decoder = specimen.name.find("decoder") != std::string::npos;
  std::vector<Reading> readings;
  for (const int axis : {0, 1}) {
    const int64_t buckets = axis == 0 ? rows : columns, heads = axis == 0 ? columns : rows;
    if (!common::agrees(specimen.given, "buckets", buckets) ||
        !common::agrees(specimen.given, "heads", heads) || (told && !is_published(buckets))) {
      continue;
    }
    for (const bool both : {!decoder, decoder}) {
      if (!common::agrees(specimen.given, "bidirectional", both) || buckets < 2 ||
          (both && buckets % 2 != 0)) {
        continue;
      }
      std::string note = direction_note(specimen, axis, both);
      if (!known && !told) {
        note += "; neighbours differ by " +
                common::short_number(common::roughness(specimen.values, axis)) +
                " of what far ones do along this axis, by " +
                common::short_number(common::roughness(specimen.values, 1 - axis)) +
                " along the other: buckets are the smooth axis of a trained table";
      }
      readings.push_back(
          {std::string("table ") +
               (axis == 0 ? "[buckets, heads], " : "[heads, buckets] (transposed: mesh, t5x), ") +
               directions(both),
           {{"heads", heads}, {"buckets", buckets}, {"bidirectional", both}},
           {},
           (axis == 0 ? "" : "transpose it first; ") + note});
    }
  }
  return readings;
}

std::vector<Reading> readings(const Specimen& specimen) {
  const TensorView& values = specimen.values;
  const bool whole = common::is_integer(specimen);
  if (values.rank == 2 && !whole) return table_readings(specimen);
  std::vector<Reading> readings;
  const auto add = [&](const std::string& what, bool heads_last) {
    const int first = whole || heads_last ? 0 : 1;
    const int64_t rows = common::size(specimen, first), columns = common::size(specimen, first + 1);
    for (const Candidate& candidate : candidates(specimen.given, rows + columns)) {
      for (const common::Lay& lay : common::lays(rows, columns, true)) {
        if (!whole && !common::tells_classes_apart(values, heads_last, lay, candidate.map))
          continue;
        std::vector<std::pair<std::string, OptionValue>> options = {
            {"buckets", candidate.size.buckets},
            {"max_distance", candidate.size.max_distance},
            {"bidirectional", candidate.both}};
        if (!whole) {
          options.insert(options.begin(), {"heads", common::size(specimen, heads_last ? 2 : 0)});
        }
        readings.push_back(
            {what + lay.text + ", " + directions(candidate.both), options,
             whole ? common::classes(lay, candidate.map)
                   : common::constant_on_classes(values, heads_last, lay, candidate.map),
             common::note_of(lay)});
      }
    }
  };
  if (values.rank == 2) add("bucket numbers ", false);
  if (values.rank == 3 && !whole) {
    for (const bool heads_last : {false, true}) {
      if (common::agrees(specimen.given, "heads", common::size(specimen, heads_last ? 2 : 0))) {
        add(heads_last ? "bias, heads last, " : "bias, heads first, ", heads_last);
      }
    }
  }
  return readings;
}

}  // namespace

namespace schemes_impl {

Scheme t5() {
  Scheme scheme;
  scheme.name = kName;
  scheme.class_name = "T5Bias";
  scheme.summary = "a learned number for each head and bucket of distances";
  scheme.source = "Raffel et al. 2020, Exploring the Limits of Transfer Learning, section 2.1";
  scheme.options = {
      {.name = "heads",
       .type = OptionType::kInt,
       .required = true,
       .positional = true,
       .doc = "query heads"},
      {.name = "buckets",
       .type = OptionType::kInt,
       .fallback = int64_t{32},
       .positional = true,
       .doc = "classes of distances; even where bidirectional"},
      {.name = "max_distance",
       .type = OptionType::kInt,
       .fallback = int64_t{128},
       .positional = true,
       .doc = "all distances from it on share the last bucket"},
      {.name = "bidirectional",
       .type = OptionType::kBool,
       .fallback = true,
       .positional = true,
       .doc = "half of the buckets for the future; else the future shares bucket 0"},
      {.name = "scale",
       .type = OptionType::kFloat,
       .fallback = 1.0,
       .positional = true,
       .doc = "multiplies the table"},
  };
  scheme.parameters = parameters;
  scheme.lower = lower;
  scheme.pull_back = pull_back;
  scheme.steps = steps;
  scheme.recognition = {
      .names = {"relative_attention_bias.weight", "rel_embedding", "relative_attention_bias",
                "relative_position_bias.weight", "relative_attention_embedding.weight",
                "rel_pos_embeddings.weight"},
      .shapes =
          "table [buckets, heads] or its transpose; integer bucket numbers [Lq, Lk]; bias "
          "[heads, Lq, Lk] or [Lq, Lk, heads]",
      .readings = readings};
  return scheme;
}

}  // namespace schemes_impl

}  // namespace relpos
