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
#include "schemes/common/readings.h"
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

constexpr double kBases[] = {1e4, 5e5, 1e6, 1.5e5, 1.6e5, 100.0};  // of published models

// The base left open: what the frequency of pair `pair` says, rounded as people choose bases, and
// those of published models.
std::vector<double> bases(const OptionMap& given, int64_t dims, int64_t pair, double frequency) {
  if (given.has("base")) return {base_option(given)};
  std::vector<double> open;
  if (frequency > 0 && std::isfinite(frequency) && pair > 0) {
    const double exact =
        std::pow(frequency, -static_cast<double>(dims) / (2.0 * static_cast<double>(pair)));
    if (std::isfinite(exact) && exact > 0) {
      const double digit = std::pow(10.0, std::floor(std::log10(exact)) - 2.0);
      const double rounded = std::round(exact / digit) * digit;
      open.push_back(std::abs(rounded - exact) < 1e-4 * exact ? rounded : exact);
    }
  }
  for (double base : kBases) {
    if (std::none_of(open.begin(), open.end(),
                     [&](double other) { return std::abs(other - base) < 1e-9 * base; })) {
      open.push_back(base);
    }
  }
  return open;
}

std::string base_text(double base) { return ", base " + common::short_number(base); }

std::vector<std::pair<std::string, OptionValue>> options_of(const OptionMap& given, int64_t dims,
                                                            double base, const char* layout) {
  const int64_t head_dim = given.has("head_dim") ? given.integer("head_dim") : dims;
  std::vector<std::pair<std::string, OptionValue>> options = {{"head_dim", head_dim}};
  if (layout != nullptr) options.emplace_back("layout", layout);
  options.emplace_back("base", base);
  if (dims != head_dim) options.emplace_back("rotary_dim", dims);
  return options;
}

bool fits_head(const OptionMap& given, int64_t dims) {
  return common::agrees(given, "rotary_dim", dims) &&
         (!given.has("head_dim") || dims <= given.integer("head_dim"));
}

constexpr const char* kEitherLayout = "frequencies do not tell the layout: see its rotation code";

std::vector<Reading> frequency_readings(const Specimen& specimen) {
  const TensorView& values = specimen.values;
  const int64_t pairs = values.shape[0], dims = 2 * pairs;
  std::vector<Reading> readings;
  if (!fits_head(specimen.given, dims)) return readings;
  const double first = values.at({0}), second = pairs > 1 ? values.at({1}) : 0.0;
  int64_t turning = pairs;
  while (turning > 1 && values.at({turning - 1}) == 0) --turning;
  for (const double base : bases(specimen.given, dims, 1, second / first)) {
    const auto formula = [base, dims](double factor, int64_t last) {
      return [=](const std::vector<int64_t>& index) {
        const double pair = static_cast<double>(index[0]);
        const double value = std::pow(base, -2.0 * pair / static_cast<double>(dims)) / factor;
        return index[0] < last ? Golden{value, 1e-6 * value} : Golden{};
      };
    };
    readings.push_back({"frequencies base^(-2p / rotary_dim)" + base_text(base),
                        options_of(specimen.given, dims, base, nullptr), formula(1.0, pairs),
                        kEitherLayout});
    if (turning < pairs) {
      readings.push_back({"proportional: the first " + std::to_string(turning) + " of " +
                              std::to_string(pairs) + " pairs turn" + base_text(base),
                          {},
                          formula(1.0, turning),
                          "rope has no option for it: rotary_dim would change the exponents"});
    }
    if (first > 0 && std::abs(first - 1.0) > 1e-6) {
      readings.push_back({"linear scaling: frequencies divided by " +
                              common::short_number(1.0 / first) + base_text(base),
                          {},
                          formula(1.0 / first, pairs),
                          "rope has no option for it"});
    }
  }
  return readings;
}

// Columns of a table of cosines or sines: which pair each belongs to.
struct Columns {
  const char* text;
  const char* layout;  // null: one column for each pair
  int64_t (*pair)(int64_t column, int64_t pairs);
  int64_t second;  // the column of pair 1
};

constexpr Columns kColumns[] = {
    {"columns (p, p + rotary_dim / 2): half", "half",
     [](int64_t c, int64_t pairs) { return c % pairs; }, 1},
    {"columns (2p, 2p + 1): interleaved", "interleaved", [](int64_t c, int64_t) { return c / 2; },
     2},
    {"one column for each pair", nullptr, [](int64_t c, int64_t) { return c; }, 1},
};

struct Kind {
  const char* text;
  double (*of)(double angle);
  double (*back)(double value);
  double at_zero;
};

double same(double x) { return x; }

constexpr Kind kKinds[] = {
    {"cosines", std::cos, std::acos, 1.0},
    {"sines", std::sin, std::asin, 0.0},
    {"angles", same, same, 0.0},
};

// The value of every column of the first row, where it is one.
bool starts_with(const TensorView& table, double value, int64_t first, int64_t last) {
  for (int64_t c = first; c < last; ++c) {
    if (std::abs(table.at({0, c}) - value) > 1e-6) return false;
  }
  return true;
}

Golden turned(const Kind& kind, double position, double frequency) {
  const double angle = position * frequency;
  return {kind.of(angle), 1e-7 + std::abs(angle) * 0x1p-22};  // angles of other code are float32
}

std::vector<Reading> angle_readings(const Specimen& specimen) {
  const TensorView& table = specimen.values;
  const int64_t columns = table.shape[1];
  std::vector<Reading> readings;
  for (const Kind& kind : kKinds) {
    if (!starts_with(table, kind.at_zero, 0, columns)) continue;
    for (const Columns& form : kColumns) {
      const int64_t pairs = form.layout == nullptr ? columns : columns / 2;
      const int64_t dims = 2 * pairs;
      if ((form.layout != nullptr && columns % 2 != 0) || !fits_head(specimen.given, dims) ||
          (form.layout != nullptr && !common::agrees(specimen.given, "layout", form.layout))) {
        continue;
      }
      const bool told = table.shape[0] > 1 && form.second < columns;
      const double frequency = told ? kind.back(table.at({1, form.second})) : 0.0;
      for (const double base : bases(specimen.given, dims, 1, frequency)) {
        readings.push_back(
            {std::string(kind.text) + " [positions, ...], " + form.text + base_text(base),
             options_of(specimen.given, dims, base, form.layout),
             [=, frequencies =
                     common::rotary_frequencies(dims, base)](const std::vector<int64_t>& index) {
               const auto pair = static_cast<size_t>(form.pair(index[1], pairs));
               return turned(kind, static_cast<double>(index[0]), frequencies[pair]);
             },
             form.layout == nullptr ? kEitherLayout : ""});
      }
    }
  }
  return readings;
}

// [positions, rotary_dim]: sines and then cosines, or the other way round, one column for each pair.
std::vector<Reading> joined_readings(const Specimen& specimen) {
  const TensorView& table = specimen.values;
  const int64_t dims = table.shape[1], pairs = dims / 2;
  std::vector<Reading> readings;
  if (dims % 2 != 0 || !fits_head(specimen.given, dims)) return readings;
  for (const bool sines_first : {true, false}) {
    if (!starts_with(table, sines_first ? 0.0 : 1.0, 0, pairs) ||
        !starts_with(table, sines_first ? 1.0 : 0.0, pairs, dims)) {
      continue;
    }
    const int64_t second = sines_first ? 1 : pairs + 1;
    const bool told = table.shape[0] > 1 && pairs > 1;
    const double frequency = told ? std::asin(table.at({1, second})) : 0.0;
    for (const double base : bases(specimen.given, dims, 1, frequency)) {
      readings.push_back({std::string(sines_first ? "sines, then cosines" : "cosines, then sines") +
                              " [positions, rotary_dim]" + base_text(base),
                          options_of(specimen.given, dims, base, nullptr),
                          [=, frequencies = common::rotary_frequencies(dims, base)](
                              const std::vector<int64_t>& index) {
                            const Kind& kind = kKinds[(index[1] < pairs) == sines_first ? 1 : 0];
                            const auto pair = static_cast<size_t>(index[1] % pairs);
                            return turned(kind, static_cast<double>(index[0]), frequencies[pair]);
                          },
                          kEitherLayout});
    }
  }
  return readings;
}

// Correlation of the log norms of both rows of each pair, over the heads of a projection.
double pair_correlation(const TensorView& weight, int64_t head_dim, int64_t dims, bool half) {
  std::vector<double> norms;
  for (int64_t r = 0; r < weight.shape[0]; ++r) {
    double sum = 0.0;
    for (int64_t c = 0; c < weight.shape[1]; ++c) {
      sum += weight.at({r, c}) * weight.at({r, c});
    }
    norms.push_back(0.5 * std::log(std::max(sum, 1e-300)));
  }
  double n = 0, x = 0, y = 0, xx = 0, yy = 0, xy = 0;
  for (int64_t head = 0; head < weight.shape[0]; head += head_dim) {
    for (int64_t p = 0; p < dims / 2; ++p) {
      const double a = norms[static_cast<size_t>(head + (half ? p : 2 * p))];
      const double b = norms[static_cast<size_t>(head + (half ? p + dims / 2 : 2 * p + 1))];
      n += 1, x += a, y += b, xx += a * a, yy += b * b, xy += a * b;
    }
  }
  const double spread = (xx - x * x / n) * (yy - y * y / n);
  return spread > 0 ? (xy - x * y / n) / std::sqrt(spread) : 0.0;
}

bool is_projection(const std::string& name) {
  for (const char* end : {"q_proj.weight", "k_proj.weight", "wq.weight", "wk.weight"}) {
    if (name.ends_with(end)) return true;
  }
  return false;
}

std::vector<Reading> weight_readings(const Specimen& specimen) {
  const OptionMap& given = specimen.given;
  if (!given.has("head_dim")) {
    return {
        {"a query or key projection", {}, {}, "give head_dim: its rows are heads of that size"}};
  }
  const int64_t head_dim = given.integer("head_dim"), rows = specimen.values.shape[0];
  const int64_t dims = given.has("rotary_dim") ? given.integer("rotary_dim") : head_dim;
  std::vector<Reading> readings;
  if (rows % head_dim != 0 || dims % 2 != 0 || dims < 2 || dims > head_dim) return readings;
  const double half = pair_correlation(specimen.values, head_dim, dims, true);
  const double interleaved = pair_correlation(specimen.values, head_dim, dims, false);
  const bool metas = specimen.name.ends_with("wq.weight") || specimen.name.ends_with("wk.weight");
  for (const bool is_half : {!metas, metas}) {
    const char* layout = is_half ? "half" : "interleaved";
    if (!common::agrees(given, "layout", layout)) continue;
    std::vector<std::pair<std::string, OptionValue>> options = {{"head_dim", head_dim},
                                                                {"layout", layout}};
    if (dims != head_dim) options.emplace_back("rotary_dim", dims);
    readings.push_back(
        {std::string("projection [heads head_dim, ...], pairs ") + layout,
         std::move(options),
         {},
         std::string(metas != is_half ? "usual under this name; " : "") +
             "norms of rows (p, p + d/2) correlate by " + common::short_number(half) +
             ", of rows (2p, 2p + 1) by " + common::short_number(interleaved) +
             ": trained, both are high for half, the second alone for interleaved; no proof"});
  }
  return readings;
}

std::vector<Reading> readings(const Specimen& specimen) {
  const TensorView& values = specimen.values;
  for (const char* size : {"head_dim", "rotary_dim"}) {
    if (specimen.given.has(size)) common::size_option(kName, specimen.given, size);
  }
  if (specimen.given.has("base")) base_option(specimen.given);
  if (common::is_integer(specimen)) return {};
  if (values.rank == 1) return frequency_readings(specimen);
  if (values.rank != 2) return {};
  if (is_projection(specimen.name)) return weight_readings(specimen);
  std::vector<Reading> readings = angle_readings(specimen);
  for (Reading& reading : joined_readings(specimen)) readings.push_back(std::move(reading));
  if (readings.empty() && specimen.given.has("head_dim")) return weight_readings(specimen);
  return readings;
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
  scheme.recognition = {
      .names = {"inv_freq", "theta", "freqs", "cos", "sin", "cos_cached", "sin_cached", "cos_theta",
                "sin_theta", "embed_positions", "q_proj.weight", "k_proj.weight", "wq.weight",
                "wk.weight"},
      .shapes =
          "frequencies [rotary_dim / 2]; cosines, sines or angles [positions, rotary_dim or "
          "its half], from position 0; query or key projection [heads head_dim, width]",
      .readings = readings};
  return scheme;
}

}  // namespace schemes_impl

}  // namespace relpos
