// Raffel et al. 2020 (T5): a learned number for each head and bucket of distances.
//
//   score[h,i,j] += scale weight[bucket(pos_k - pos_q), h]
#include <algorithm>
#include <cmath>

#include "relpos/scheme.h"
#include "schemes/common/buckets.h"
#include "schemes/common/checks.h"

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
  return scheme;
}

}  // namespace schemes_impl

}  // namespace relpos
