// Su et al. 2021 (RoFormer): queries and keys turn by their positions, so that their products see
// the distance alone.
//
//   pair p of a head turns by pos * base^(-2 p / rotary_dim); dimensions from rotary_dim on stay
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/angles.h"
#include "relpos/scheme.h"
#include "schemes/common/checks.h"
#include "schemes/common/frequencies.h"

namespace relpos {

namespace {

constexpr const char* kName = "rope";

bool float32_angles(const OptionMap& options) { return options.text("angle") == "float32"; }

int64_t rotary_dim(const OptionMap& options) {
  const int64_t head_dim = common::size_option(kName, options, "head_dim");
  if (!options.has("rotary_dim")) {
    check_value(head_dim % 2 == 0, kName, ": head_dim: expected an even number, got ", head_dim,
                "; give an even rotary_dim to turn a part of the head");
    return head_dim;
  }
  const int64_t dim = common::size_option(kName, options, "rotary_dim", 2);
  check_value(dim % 2 == 0 && dim <= head_dim, kName,
              ": rotary_dim: expected an even number up to head_dim=", head_dim, ", got ", dim);
  return dim;
}

double base_option(const OptionMap& options) {
  const double base = options.number("base");
  check_value(base > 0, kName, ": base: expected a number above 0, got ", base);
  return base;
}

Rotation rotation(const OptionMap& options) {
  const double base = base_option(options);
  Rotation turn;
  turn.dims = rotary_dim(options);
  turn.layout = options.text("layout") == "half" ? PairLayout::kHalf : PairLayout::kInterleaved;
  turn.float32_angles = float32_angles(options);
  turn.frequency = turn.float32_angles ? common::rotary_frequencies_float32(turn.dims, base)
                                       : common::rotary_frequencies(turn.dims, base);
  return turn;
}

std::vector<ParameterSpec> parameters(const OptionMap& options) {
  rotation(options);
  return {};
}

void lower(const Setting& setting, Terms& terms) {
  common::check_fits(kName, "head_dim", setting.options.integer("head_dim"), setting.head_dim);
  terms.rotations.push_back(rotation(setting.options));
}

}  // namespace

namespace schemes_impl {

Scheme rope() {
  Scheme scheme;
  scheme.name = kName;
  scheme.class_name = "RoPE";
  scheme.summary = "queries and keys turn by their positions";
  scheme.source =
      "Su et al. 2021, RoFormer: Enhanced Transformer with Rotary Position Embedding, 3.2";
  scheme.options = {
      {.name = "head_dim",
       .type = OptionType::kInt,
       .required = true,
       .positional = true,
       .doc = "size of a query and key head"},
      {.name = "layout",
       .type = OptionType::kChoice,
       .required = true,
       .choices = {"interleaved", "half"},
       .doc = "pairs (2p, 2p + 1), as GPT-J and Meta's Llama, or (p, p + rotary_dim / 2), as "
              "GPT-NeoX and Hugging Face"},
      {.name = "base",
       .type = OptionType::kFloat,
       .fallback = 10000.0,
       .doc = "pair p turns by base^(-2p / rotary_dim) a position"},
      {.name = "rotary_dim",
       .type = OptionType::kInt,
       .doc = "first dimensions of the head that turn; None: all"},
      {.name = "angle",
       .type = OptionType::kChoice,
       .fallback = "double",
       .choices = {"double", "float32"},
       .doc = "precision of frequencies and angles; float32 repeats Hugging Face's rounding"},
  };
  scheme.parameters = parameters;
  scheme.lower = lower;
  return scheme;
}

}  // namespace schemes_impl

}  // namespace relpos
