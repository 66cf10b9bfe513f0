#include <algorithm>
#include <cmath>

#include "conventions/common.h"
#include "schemes/common/frequencies.h"

namespace relpos::conventions {
namespace {

constexpr double kBases[] = {1e4, 5e5, 1e6, 1.5e5, 1.6e5, 100.0};  // of published models
constexpr const char* kEitherLayout = "frequencies do not tell the layout: see its rotation code";

// The base left open: what the frequency of pair 1 says, rounded as people choose bases, and those
// of published models.
std::vector<double> bases(const CheckedTensor& tensor, int64_t dims, double frequency) {
  if (tensor.given.has("base")) return {tensor.given.number("base")};
  std::vector<double> open;
  const double exact = frequency > 0 ? std::pow(frequency, -static_cast<double>(dims) / 2.0) : 0.0;
  if (exact > 0 && std::isfinite(exact)) {
    const double digit = std::pow(10.0, std::floor(std::log10(exact)) - 2.0);
    const double rounded = std::round(exact / digit) * digit;
    open.push_back(std::abs(rounded - exact) < 1e-4 * exact ? rounded : exact);
  }
  for (double base : kBases) {
    const auto same = [&](double other) { return std::abs(other - base) < 1e-9 * base; };
    if (std::ranges::none_of(open, same)) open.push_back(base);
  }
  return open;
}

std::string base_text(double base) { return ", base " + short_number(base); }

OptionValues options_of(const OptionMap& given, int64_t dims, double base, const char* layout) {
  const int64_t head_dim = given.has("head_dim") ? given.integer("head_dim") : dims;
  OptionValues options = {{"head_dim", head_dim}};
  if (layout != nullptr) options.emplace_back("layout", layout);
  options.emplace_back("base", base);
  if (dims != head_dim) options.emplace_back("rotary_dim", dims);
  return options;
}

bool fits_head(const CheckedTensor& tensor, int64_t dims) {
  return tensor.agrees({{"rotary_dim", dims}}) &&
         (!tensor.given.has("head_dim") || dims <= tensor.given.integer("head_dim"));
}

std::vector<Convention> of_frequencies(const CheckedTensor& tensor) {
  const TensorView& values = tensor.values;
  const int64_t pairs = values.shape[0], dims = 2 * pairs;
  std::vector<Convention> found;
  if (!fits_head(tensor, dims)) return found;
  const double first = values.at({0}), second = pairs > 1 ? values.at({1}) : 0.0;
  int64_t turning = pairs;
  while (turning > 1 && values.at({turning - 1}) == 0) --turning;
  for (const double base : bases(tensor, dims, second / first)) {
    const auto add = [&](const std::string& text, double factor, int64_t last,
                         const std::string& note) {
      const bool plain = factor == 1.0 && last == pairs;
      const auto formula = [=](const std::vector<int64_t>& index) {
        const double pair = static_cast<double>(index[0]);
        const double value = std::pow(base, -2.0 * pair / static_cast<double>(dims)) / factor;
        return index[0] < last ? ExpectedValue{value, 1e-6 * value} : ExpectedValue{};
      };
      found.push_back({text + base_text(base), options_of(tensor.given, dims, base, nullptr),
                       formula, note, /*expressible=*/plain});
    };
    add("frequencies base^(-2p / rotary_dim)", 1.0, pairs, kEitherLayout);
    if (turning < pairs) {
      const std::string share =
          short_number(static_cast<double>(turning) / static_cast<double>(pairs));
      add("proportional: the first " + std::to_string(turning) + " of " + std::to_string(pairs) +
              " pairs turn",
          1.0, turning, "rope_proportional(partial_rotary_factor=" + share + ") means it");
    }
    if (first > 0 && std::abs(first - 1.0) > 1e-6) {
      add("linear scaling: frequencies divided by " + short_number(1.0 / first), 1.0 / first, pairs,
          "rope_linear(factor=" + short_number(1.0 / first) + ") means it");
    }
  }
  return found;
}

struct Function {
  const char* name;
  double (*of)(double angle);
  double (*inverse)(double value);
};

double same(double x) { return x; }

constexpr Function kCosines = {"cosines", std::cos, std::acos};
constexpr Function kSines = {"sines", std::sin, std::asin};
constexpr Function kAngles = {"angles", same, same};

// A table [positions, columns] of cosines, sines or angles, by its columns.
struct AngleTable {
  std::string text;
  int64_t pairs;
  const char* layout;              // null: no column says it
  const Function *first, *second;  // of the first `pairs` columns, of the others

  int64_t pair(int64_t column) const {
    const bool interleaved = layout != nullptr && *layout == 'i';
    return interleaved ? column / 2 : column % pairs;
  }
  const Function& function(int64_t column) const { return column < pairs ? *first : *second; }
};

std::vector<AngleTable> angle_tables(int64_t columns) {
  std::vector<AngleTable> all;
  const int64_t pairs = columns / 2;
  const bool even = columns % 2 == 0;
  for (const Function* f : {&kCosines, &kSines, &kAngles}) {
    const std::string text = std::string(f->name) + " [positions, ...], ";
    if (even) {
      all.push_back({text + "columns (p, p + rotary_dim / 2): half", pairs, "half", f, f});
      all.push_back({text + "columns (2p, 2p + 1): interleaved", pairs, "interleaved", f, f});
    }
    all.push_back({text + "one column for each pair", columns, nullptr, f, f});
  }
  if (even) {
    const std::string text = " [positions, rotary_dim]";
    all.push_back({"sines, then cosines" + text, pairs, nullptr, &kSines, &kCosines});
    all.push_back({"cosines, then sines" + text, pairs, nullptr, &kCosines, &kSines});
  }
  return all;
}

// The frequency of pair 1, by its sine where both are there; 0 where nothing tells.
double second_frequency(const TensorView& table, const AngleTable& held) {
  const bool joined = held.first != held.second;
  for (int64_t c = 0; table.shape[0] > 1 && c < table.shape[1]; ++c) {
    const Function& f = held.function(c);
    if (held.pair(c) == 1 && !(joined && &f == &kCosines)) return f.inverse(table.at({1, c}));
  }
  return 0.0;
}

std::vector<Convention> of_angles(const CheckedTensor& tensor) {
  const TensorView& table = tensor.values;
  std::vector<Convention> found;
  for (const AngleTable& held : angle_tables(tensor.size(1))) {
    bool starts = fits_head(tensor, 2 * held.pairs);
    for (int64_t c = 0; starts && c < tensor.size(1); ++c) {
      starts = std::abs(table.at({0, c}) - held.function(c).of(0.0)) <= 1e-6;
    }
    if (!starts) continue;
    for (const double base : bases(tensor, 2 * held.pairs, second_frequency(table, held))) {
      const auto expected = [held, frequencies = common::rotary_frequencies(2 * held.pairs, base)](
                                const std::vector<int64_t>& index) {
        const auto pair = static_cast<size_t>(held.pair(index[1]));
        const double angle = static_cast<double>(index[0]) * frequencies[pair];
        // Angles of other code are float32.
        return ExpectedValue{held.function(index[1]).of(angle), 1e-7 + std::abs(angle) * 0x1p-22};
      };
      found.push_back({held.text + base_text(base),
                       options_of(tensor.given, 2 * held.pairs, base, held.layout), expected,
                       held.layout == nullptr ? kEitherLayout : ""});
    }
  }
  return found;
}

// Correlation of the log norms of both rows of each pair, over the heads of a projection.
double pair_correlation(const TensorView& weight, int64_t head_dim, int64_t dims, bool half) {
  const auto log_norm = [&](int64_t row) {
    double sum = 0.0;
    for (int64_t c = 0; c < weight.shape[1]; ++c) sum += std::pow(weight.at({row, c}), 2);
    return 0.5 * std::log(std::max(sum, 1e-300));
  };
  double n = 0, x = 0, y = 0, xx = 0, yy = 0, xy = 0;
  for (int64_t head = 0; head < weight.shape[0]; head += head_dim) {
    for (int64_t p = 0; p < dims / 2; ++p) {
      const double a = log_norm(head + (half ? p : 2 * p));
      const double b = log_norm(head + (half ? p + dims / 2 : 2 * p + 1));
      n += 1, x += a, y += b, xx += a * a, yy += b * b, xy += a * b;
    }
  }
  const double spread = (xx - x * x / n) * (yy - y * y / n);
  return spread > 0 ? (xy - x * y / n) / std::sqrt(spread) : 0.0;
}

bool ends_with_any(const std::string& name, const std::vector<const char*>& ends) {
  return std::ranges::any_of(ends, [&](const char* end) { return name.ends_with(end); });
}

std::vector<Convention> of_projection(const CheckedTensor& tensor) {
  const OptionMap& given = tensor.given;
  if (!given.has("head_dim")) {
    return {
        {"a query or key projection", {}, {}, "give head_dim: its rows are heads of that size"}};
  }
  const int64_t head_dim = given.integer("head_dim");
  const int64_t dims = given.has("rotary_dim") ? given.integer("rotary_dim") : head_dim;
  std::vector<Convention> found;
  if (tensor.size(0) % head_dim != 0 || dims % 2 != 0 || dims > head_dim) return found;
  const std::string correlations =
      "norms of rows (p, p + d/2) correlate by " +
      short_number(pair_correlation(tensor.values, head_dim, dims, true)) +
      ", of rows (2p, 2p + 1) by " +
      short_number(pair_correlation(tensor.values, head_dim, dims, false)) +
      ": trained, both are high for half, the second alone for interleaved; no proof";
  const char* usual =  // under Meta's names, under others
      ends_with_any(tensor.name, {"wq.weight", "wk.weight"}) ? "interleaved" : "half";
  for (const char* layout : {usual, *usual == 'h' ? "interleaved" : "half"}) {
    OptionValues options = {{"head_dim", head_dim}, {"layout", layout}};
    if (dims != head_dim) options.emplace_back("rotary_dim", dims);
    found.push_back({std::string("projection [heads head_dim, ...], pairs ") + layout,
                     std::move(options),
                     {},
                     (layout == usual ? "usual under this name; " : "") + correlations});
  }
  return found;
}

std::vector<Convention> of(const CheckedTensor& tensor) {
  check_sizes("rope", tensor.given, {"head_dim", "rotary_dim"});
  const double base = tensor.given.has("base") ? tensor.given.number("base") : 1.0;
  check_value(base > 0, "rope: base: expected a number above 0, got ", base);
  if (tensor.is_integer()) return {};
  if (tensor.values.rank == 1) return of_frequencies(tensor);
  if (tensor.values.rank != 2) return {};
  if (ends_with_any(tensor.name, {"q_proj.weight", "k_proj.weight", "wq.weight", "wk.weight"})) {
    return of_projection(tensor);
  }
  std::vector<Convention> found = of_angles(tensor);
  if (found.empty() && tensor.given.has("head_dim")) return of_projection(tensor);
  return found;
}

}  // namespace

Conventions rope() {
  return {
      {"inv_freq", "theta", "freqs", "cos", "sin", "cos_cached", "sin_cached", "cos_theta",
       "sin_theta", "embed_positions", "q_proj.weight", "k_proj.weight", "wq.weight", "wk.weight"},
      "frequencies [rotary_dim / 2]; cosines, sines or angles [positions, rotary_dim or its "
      "half], from position 0; query or key projection [heads head_dim, width]",
      of};
}

}  // namespace relpos::conventions
