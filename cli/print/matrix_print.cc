#include "cli/print/matrix_print.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "cli/common.h"

namespace relpos::cli {
namespace {

using Json = nlohmann::ordered_json;

bool set_and_not_empty(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0';
}

int64_t to_integer(double value) {
  constexpr double kLimit = 9223372036854775808.0;
  if (std::isnan(value) || value < -kLimit) return std::numeric_limits<int64_t>::min();
  return value >= kLimit ? std::numeric_limits<int64_t>::max() : static_cast<int64_t>(value);
}

// Turns numbers of one matrix into text of one width.
class NumberFormat {
 public:
  explicit NumberFormat(const Step& matrix) : kind_(matrix.kind) {
    Range range;
    range.add(matrix.values);
    const double largest = range.largest();
    scientific_ = kind_ == Step::Kind::kReal && (largest >= 1e8 || (largest > 0 && largest < 1e-3));
    for (double value : matrix.values) width_ = std::max(width_, plain(value).size());
  }
  size_t width() const noexcept { return width_; }
  std::string operator()(double value) const {
    const std::string text = plain(value);
    return std::string(width_ - text.size(), ' ') + text;
  }

 private:
  std::string plain(double value) const {
    if (kind_ == Step::Kind::kBoolean) return value != 0.0 ? "True" : "False";
    if (std::isnan(value)) return "nan";
    if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
    if (kind_ == Step::Kind::kInteger) return std::to_string(to_integer(value));
    const std::string text = text_of(scientific_ ? "%.4e" : "%.4f", value);
    return text == "-0.0000" ? "0.0000" : text;
  }

  Step::Kind kind_;
  bool scientific_ = false;
  size_t width_ = 1;
};

void append_nested(const Step& matrix, const NumberFormat& number, size_t axis, size_t& next,
                   std::string& text) {
  if (axis == matrix.shape.size()) {
    text += number(matrix.values[next++]);
    return;
  }
  text += '[';
  const size_t below = matrix.shape.size() - axis - 1;
  for (int64_t n = 0; n < matrix.shape[axis]; ++n) {
    if (n > 0 && below == 0) text += ", ";
    if (n > 0 && below > 0) text += "," + std::string(below, '\n') + std::string(axis + 1, ' ');
    append_nested(matrix, number, axis + 1, next, text);
  }
  text += ']';
}

using Rgb = std::array<int, 3>;

Rgb blend(const std::vector<Rgb>& stops, double t) {
  const double place = std::clamp(t, 0.0, 1.0) * static_cast<double>(stops.size() - 1);
  const size_t n = std::min(static_cast<size_t>(place), stops.size() - 2);
  const double part = place - static_cast<double>(n);
  Rgb result{};
  for (size_t c = 0; c < 3; ++c) {
    result[c] = static_cast<int>(std::lround(stops[n][c] + part * (stops[n + 1][c] - stops[n][c])));
  }
  return result;
}

// Both scales keep their order for colour-blind readers: viridis, and blue to white to orange.
const std::vector<Rgb>& sequential() {
  static const std::vector<Rgb> stops{
      {68, 1, 84}, {59, 82, 139}, {33, 145, 140}, {94, 201, 98}, {253, 231, 37}};
  return stops;
}
const std::vector<Rgb>& diverging() {
  static const std::vector<Rgb> stops{{33, 102, 172}, {247, 247, 247}, {217, 95, 2}};
  return stops;
}

class ColorScale {
 public:
  ColorScale(const Step& matrix, Style::Color color) : color_(color) {
    range_.add(matrix.values);
    if (range_.low > range_.high) range_ = {0.0, 0.0};
    signed_ = range_.low < 0.0 && range_.high > 0.0;
  }
  const Range& range() const noexcept { return range_; }

  // The text on the colour of the value.
  std::string cell(double value, const std::string& text) const {
    const Rgb back = background(value);
    const bool light = 299 * back[0] + 587 * back[1] + 114 * back[2] > 128000;
    return escape("48", back) + escape("38", light ? Rgb{0, 0, 0} : Rgb{255, 255, 255}) + text +
           "\x1b[0m";
  }

 private:
  Rgb background(double value) const {
    if (!std::isfinite(value)) return {90, 90, 90};
    if (signed_) return blend(diverging(), 0.5 + 0.5 * value / range_.largest());
    return blend(sequential(), range_.high > range_.low
                                   ? (value - range_.low) / (range_.high - range_.low)
                                   : 0.0);
  }
  std::string escape(const char* layer, const Rgb& rgb) const {
    std::string text = std::string("\x1b[") + layer;
    if (color_ == Style::Color::kTrue) {
      text += ";2";
      for (const int part : rgb) text += ";" + std::to_string(part);
      return text + "m";
    }
    const auto step = [](int part) { return (part * 5 + 127) / 255; };
    return text + ";5;" + std::to_string(16 + 36 * step(rgb[0]) + 6 * step(rgb[1]) + step(rgb[2])) +
           "m";
  }

  Style::Color color_;
  Range range_;
  bool signed_ = false;
};

// One matrix [rows, columns] at `first` of the values; queries go down, keys to the right.
void append_heat_map(const Step& matrix, size_t first, int64_t rows, int64_t columns,
                     const NumberFormat& number, const ColorScale& scale, const Style& style,
                     std::string& text) {
  const size_t label = std::to_string(std::max<int64_t>(rows - 1, 0)).size() + 1;
  const int64_t room = std::max<int64_t>(style.width - static_cast<int64_t>(label) - 4, 8);
  const auto wide = static_cast<int64_t>(number.width()) + 1;
  const bool numbers = columns * wide <= room;
  const int64_t shown = std::min(columns, numbers ? columns : room / 2);
  const int64_t lines = std::min<int64_t>(rows, std::max(style.height - 5, 8));
  const auto value = [&](int64_t i, int64_t j) {
    return matrix.values[first + static_cast<size_t>(i * columns + j)];
  };
  for (int64_t i = 0; i < lines; ++i) {
    text += text_of("%*ld ", static_cast<int>(label) - 1, i);
    for (int64_t j = 0; j < shown; ++j) {
      text += scale.cell(value(i, j), numbers ? number(value(i, j)) + " " : "  ");
    }
    text += shown < columns ? " ...\n" : "\n";
  }
  if (lines < rows) text += "...\n";
  if (lines < rows || shown < columns) {
    text += text_of("(%ld x %ld of %ld x %ld; a pipe gets all)\n", lines, shown, rows, columns);
  }
  if (!numbers) {
    const auto [low, high] = scale.range();
    text += text_of("%.4g ", low);
    for (int n = 0; n <= 16; ++n) text += scale.cell(low + (high - low) * n / 16, "  ");
    text += text_of(" %.4g\n", high);
  }
}

Json nested_json(const Step& matrix, size_t axis, size_t& next) {
  if (axis == matrix.shape.size()) {
    const double value = matrix.values[next++];
    if (matrix.kind == Step::Kind::kBoolean) return value != 0.0;
    if (matrix.kind == Step::Kind::kInteger && std::isfinite(value)) return to_integer(value);
    return json_number(value);
  }
  Json list = Json::array();
  for (int64_t n = 0; n < matrix.shape[axis]; ++n)
    list.push_back(nested_json(matrix, axis + 1, next));
  return list;
}

}  // namespace

Style stdout_style(const std::string& mode) {
  Style style;
  style.terminal = ::isatty(STDOUT_FILENO) != 0;
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    style.width = size.ws_col;
    style.height = size.ws_row > 0 ? size.ws_row : style.height;
  }
  const char* term = std::getenv("TERM");
  const bool dumb = term == nullptr || std::string_view(term) == "dumb" || *term == '\0';
  const bool plain = set_and_not_empty("NO_COLOR") || dumb || !style.terminal;
  if (mode == "never" || (mode != "always" && plain)) return style;
  const char* depth = std::getenv("COLORTERM");
  const std::string_view depth_text = depth == nullptr ? "" : depth;
  const bool full = depth_text == "truecolor" || depth_text == "24bit";
  style.color = full ? Style::Color::kTrue : Style::Color::k256;
  return style;
}

std::string matrix_text(const Step& matrix, const Style& style) {
  const NumberFormat number(matrix);
  std::string text;
  if (style.color == Style::Color::kNone || matrix.shape.size() < 2) {
    size_t next = 0;
    append_nested(matrix, number, 0, next, text);
    return text + "\n";
  }
  const ColorScale scale(matrix, style.color);
  const int64_t rows = matrix.shape[matrix.shape.size() - 2], columns = matrix.shape.back();
  const auto size = static_cast<size_t>(rows * columns);
  for (size_t first = 0; first + size <= matrix.values.size() && size > 0; first += size) {
    if (matrix.shape.size() > 2) {
      // The index of this slice over the leading axes.
      auto rest = static_cast<int64_t>(first / size);
      std::vector<int64_t> index(matrix.shape.size() - 2);
      for (size_t axis = index.size(); axis-- > 0; rest /= matrix.shape[axis]) {
        index[axis] = rest % matrix.shape[axis];
      }
      text += shape_text(index) + "\n";
    }
    append_heat_map(matrix, first, rows, columns, number, scale, style, text);
  }
  return text;
}

Json matrix_json(const Step& matrix) {
  static constexpr std::array kKinds{"integer", "real", "boolean"};
  size_t next = 0;
  return {{"name", matrix.name},
          {"kind", kKinds[static_cast<size_t>(matrix.kind)]},
          {"shape", matrix.shape},
          {"values", nested_json(matrix, 0, next)}};
}

}  // namespace relpos::cli
