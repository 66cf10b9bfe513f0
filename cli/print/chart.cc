#include "cli/print/chart.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "cli/common.h"

namespace relpos::cli {
namespace {

constexpr size_t kRows = 11;
constexpr size_t kFewestColumns = 9;

// Counted from the top.
size_t row_of(double value, const Range& range) {
  if (range.high <= range.low) return kRows / 2;
  const double part = (range.high - value) / (range.high - range.low);
  return static_cast<size_t>(std::lround(part * static_cast<double>(kRows - 1)));
}

// Writes `text` around column `at` of `line`, as far as it fits.
void put(std::string& line, const std::string& text, size_t at) {
  const size_t size = std::min(text.size(), line.size());
  const size_t begin = std::min(at - std::min(at, size / 2), line.size() - size);
  line.replace(begin, size, text.substr(0, size));
}

}  // namespace

std::string chart_text(int64_t first, const std::vector<double>& a, const std::vector<double>& b,
                       int width) {
  Range range;
  range.add(a);
  range.add(b);
  if (a.empty() || range.low > range.high) return "(no finite number to draw)\n";
  const std::string top = text_of("%.4g", range.high), bottom = text_of("%.4g", range.low);
  const size_t margin = std::max(top.size(), bottom.size());
  const size_t room = std::max(static_cast<size_t>(std::max(width, 0)), margin + 3) - margin - 3;
  size_t columns = std::min(a.size(), std::max(room, kFewestColumns));
  if (columns > 1) columns -= (columns + 1) % 2;  // odd: the middle distance has a column
  const auto at = [&](size_t column) {
    return columns == 1 ? 0 : (column * (a.size() - 1) + (columns - 1) / 2) / (columns - 1);
  };

  std::vector<std::string> cells(kRows, std::string(columns, ' '));
  for (size_t column = 0; column < columns; ++column) {
    for (const auto& [curve, letter] : {std::pair{&a, 'A'}, std::pair{&b, 'B'}}) {
      const double value = (*curve)[at(column)];
      if (!std::isfinite(value)) continue;
      char& cell = cells[row_of(value, range)][column];
      cell = cell == ' ' ? letter : '*';
    }
  }
  std::string text;
  for (size_t row = 0; row < kRows; ++row) {
    std::string side = row == 0 ? top : row + 1 == kRows ? bottom : "";
    side.insert(0, margin - side.size(), ' ');
    const size_t end = cells[row].find_last_not_of(' ');
    text += side + " |" + cells[row].substr(0, end == std::string::npos ? 0 : end + 1) + "\n";
  }
  std::string numbers(columns, ' ');
  const auto last = first + static_cast<int64_t>(a.size()) - 1;
  if (columns > 1) put(numbers, std::to_string(first), 0);
  put(numbers, std::to_string(first + static_cast<int64_t>(at(columns / 2))), columns / 2);
  if (columns > 1) put(numbers, std::to_string(last), columns);
  numbers.erase(numbers.find_last_not_of(' ') + 1);
  const std::string indent(margin + 1, ' ');
  return text + indent + "+" + std::string(columns, '-') + "\n" + indent + " " + numbers + "\n";
}

}  // namespace relpos::cli
