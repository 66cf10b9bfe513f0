// Su et al. 2021 (RoFormer): queries and keys turn by their positions, so that their products see
// the distance alone.
//
//   pair p of a head turns by pos * base^(-2 p / rotary_dim); dimensions from rotary_dim on stay
#include <cmath>

#include "base/angles.h"
#include "relpos/scheme.h"
#include "schemes/common/checks.h"
#include "schemes/common/frequencies.h"
#include "schemes/common/steps.h"

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

Rotation rotation(const OptionMap& options) {
  const double base = options.number("base");
  check_value(base > 0, kName, ": base: expected a number above 0, got ", base);
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

// theta, freqs, freqs twice in the pair layout, cos, sin of `count` positions.
void append_tables(std::vector<Step>& road, const Rotation& turn, const std::string& suffix,
                   int64_t start, int64_t count) {
  const auto pairs = static_cast<int64_t>(turn.frequency.size());
  const bool half = turn.layout == PairLayout::kHalf;
  road.push_back(common::arange("positions" + suffix, start, count));
  const auto real = [&](const char* name, int64_t columns, auto cell) {
    Step step = common::empty_step(name + suffix, Step::Kind::kReal, {count, columns});
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t c = 0; c < columns; ++c) step.values.push_back(cell(start + i, c));
    }
    road.push_back(std::move(step));
  };
  const auto angle = [&](int64_t position, int64_t pair) {
    return rotation_angle(turn, position, static_cast<size_t>(pair));
  };
  const auto twice = [&](int64_t position, int64_t c) {
    return angle(position, half ? c % pairs : c / 2);
  };
  real("freqs", pairs, angle);
  real("freqs_twice", 2 * pairs, twice);
  real("cos", 2 * pairs, [&](int64_t position, int64_t c) { return std::cos(twice(position, c)); });
  real("sin", 2 * pairs, [&](int64_t position, int64_t c) { return std::sin(twice(position, c)); });
}

std::vector<Step> steps(const Setting& setting, const Grid& grid) {
  const Rotation turn = rotation(setting.options);
  const auto pairs = static_cast<int64_t>(turn.frequency.size());
  std::vector<Step> road = {{"theta", Step::Kind::kReal, {pairs}, turn.frequency}};
  append_tables(road, turn, "", 0, grid.keys);
  const bool queries_among_keys = grid.q_offset >= 0 && grid.queries <= grid.keys - grid.q_offset;
  if (!queries_among_keys) {
    append_tables(road, turn, "_q", grid.q_offset, grid.queries);
  }
  return road;
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
  scheme.steps = steps;
  return scheme;
}

}  // namespace schemes_impl

}  // namespace relpos
