#include "cli/common.h"

#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <variant>

#include "io/file.h"
#include "relpos/attention.h"

namespace relpos::cli {

using Json = nlohmann::ordered_json;

std::string join(const std::vector<std::string>& words, std::string_view separator) {
  std::string text;
  for (const std::string& word : words) {
    if (!text.empty()) text += separator;
    text += word;
  }
  return text;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::vector<std::string> sizes;
  for (int64_t size : shape) sizes.push_back(std::to_string(size));
  return "[" + join(sizes) + "]";
}

std::string config_value(std::string_view name) {
  for (const auto& [known, value] : show_config()) {
    if (known == name) return value;
  }
  return "";
}

template <typename T>
T parse_as(const std::string& text, const std::string& what) {
  T value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, value);
  const bool whole = code == std::errc() && stop == end;
  if constexpr (std::is_floating_point_v<T>) {
    check_value(whole && std::isfinite(value), what, ": expected a finite number, got ",
                io::printable(text));
  } else {
    using Limits = std::numeric_limits<T>;
    const bool beyond = code == std::errc::result_out_of_range || std::is_unsigned_v<T>;
    check_value(whole || !beyond, what, ": expected an integer from ", Limits::min(), " to ",
                Limits::max(), ", got ", io::printable(text));
    check_value(whole, what, ": expected an integer, got ", io::printable(text));
  }
  return value;
}

template int parse_as<int>(const std::string&, const std::string&);
template int64_t parse_as<int64_t>(const std::string&, const std::string&);
template uint64_t parse_as<uint64_t>(const std::string&, const std::string&);
template double parse_as<double>(const std::string&, const std::string&);

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> words;
  size_t begin = 0;
  while (true) {
    const size_t end = text.find(separator, begin);
    words.push_back(text.substr(begin, end - begin));
    if (end == std::string::npos) return words;
    begin = end + 1;
  }
}

std::vector<std::string> wrapped(const std::string& text, size_t width) {
  std::vector<std::string> lines(1);
  for (const std::string& word : split(text, ' ')) {
    if (!lines.back().empty() && lines.back().size() + 1 + word.size() > width) {
      lines.emplace_back();
    }
    lines.back() += (lines.back().empty() ? "" : " ") + word;
  }
  return lines;
}

Json json_number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

Json json_option(const OptionValue& value) {
  return std::visit(
      [](const auto& v) -> Json {
        using V = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<V, std::monostate>) {
          return nullptr;
        } else if constexpr (std::is_same_v<V, double>) {
          return json_number(v);
        } else if constexpr (std::is_same_v<V, std::vector<double>>) {
          Json list = Json::array();
          for (double number : v) list.push_back(json_number(number));
          return list;
        } else {
          return v;
        }
      },
      value);
}

Json json_options(const OptionMap& options) {
  Json object = Json::object();
  for (const auto& [name, value] : options.items()) object[name] = json_option(value);
  return object;
}

void print(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) {
    return;
  }
  if (errno == EPIPE) std::_Exit(kOk);
  throw_error(ErrorKind::kIo, "stdout: cannot write: ", std::strerror(errno));
}

void note(const std::string& text) { std::fprintf(stderr, "%s\n", text.c_str()); }

std::string json_text(const Json& value) {
  return value.dump(2, ' ', false, Json::error_handler_t::replace);
}

void print_json(const Json& value) { print(json_text(value) + "\n"); }

}  // namespace relpos::cli
