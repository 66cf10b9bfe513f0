// The commands share these: exit codes, errors of one line, output.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "relpos/position.h"

namespace relpos::cli {

enum ExitCode { kOk = 0, kFailedCheck = 1, kBadInput = 2, kOutOfMemory = 3, kInterrupted = 130 };

std::string join(const std::vector<std::string>& words, std::string_view separator = ", ");
std::string shape_text(const std::vector<int64_t>& shape);
// The text that printf would write.
template <typename... T>
std::string text_of(const char* format, const T&... values) {
  std::string text(static_cast<size_t>(std::snprintf(nullptr, 0, format, values...)), ' ');
  std::snprintf(text.data(), text.size() + 1, format, values...);
  return text;
}

// The least and the largest of the finite ones; low > high where there is none.
struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -low;

  void add(double value) {
    if (!std::isfinite(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  void add(const std::vector<double>& values) {
    for (const double value : values) add(value);
  }
  double largest() const { return low > high ? 0.0 : std::max(std::abs(low), std::abs(high)); }
};

// A value of relpos::show_config(); empty where it has no such name.
std::string config_value(std::string_view name);

// Strict: the whole text is one number that T holds (int, int64_t, uint64_t, double), else Error
// (kValue) that starts with `what`. Finite only.
template <typename T>
T parse_as(const std::string& text, const std::string& what);
std::vector<std::string> split(const std::string& text, char separator);

// Words of `text` in lines of at most `width`; a longer word has a line of its own.
std::vector<std::string> wrapped(const std::string& text, size_t width);

// Numbers that JSON lacks become "inf", "-inf", "nan".
nlohmann::ordered_json json_number(double value);
nlohmann::ordered_json json_option(const OptionValue& value);
nlohmann::ordered_json json_options(const OptionMap& options);

// Writes to stdout; a reader that went away is no error, a full disk is.
void print(std::string_view text);
// A line on stderr.
void note(const std::string& text);
// Indented.
std::string json_text(const nlohmann::ordered_json& value);
// stdout, indented.
void print_json(const nlohmann::ordered_json& value);

}  // namespace relpos::cli
