#include "cli/options/scheme_options.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <variant>

#include "cli/common.h"
#include "io/file.h"

namespace relpos::cli {
namespace {

bool takes_none(const OptionSpec& spec) {
  return !spec.required && std::holds_alternative<std::monostate>(spec.fallback);
}

std::string fallback_text(const OptionSpec& spec) {
  if (spec.required) return "";
  const std::string text = json_option(spec.fallback).dump();
  return text == "null" ? "none" : text.front() == '"' ? text.substr(1, text.size() - 2) : text;
}

const char* type_label(OptionType type) {
  switch (type) {
    case OptionType::kInt:
      return "INT";
    case OptionType::kFloat:
      return "NUMBER";
    case OptionType::kChoice:
    case OptionType::kBool:
      return "";
    case OptionType::kChoiceOrValues:
      return "|N,N,...";
    case OptionType::kValues:
      return "N,N,...";
  }
  return "";
}

// The size that fill_required gives.
int64_t filled_size(const OptionSpec& spec, int64_t length) {
  return spec.name == "heads" ? 4 : spec.name.ends_with("_dim") ? 8 : length;
}
constexpr double kFilledValue = 4.0;

bool is_filled(const OptionSpec& spec) { return spec.required && spec.type == OptionType::kInt; }

std::string description(const OptionSpec& spec) {
  constexpr int64_t kAnyLength = -1;
  std::string fallback = fallback_text(spec);
  if (is_filled(spec)) {
    const int64_t size = filled_size(spec, kAnyLength);
    fallback = size == kAnyLength ? "the longer of query and key" : std::to_string(size);
  }
  if (spec.required && spec.type == OptionType::kValues) {
    fallback = std::to_string(static_cast<int>(kFilledValue));
  }
  return spec.doc + (fallback.empty() ? "" : " [" + fallback + "]");
}

std::vector<double> parse_numbers(const std::string& text, const std::string& flag) {
  std::vector<double> numbers;
  for (const std::string& word : split(text, ',')) numbers.push_back(parse_as<double>(word, flag));
  return numbers;
}

bool is_given(const GivenOptions& given, const std::string& name) {
  return std::ranges::any_of(given, [&](const auto& item) { return item.first == name; });
}

}  // namespace

std::string option_flag(const std::string& name) {
  std::string flag = "--" + name;
  std::ranges::replace(flag, '_', '-');
  return flag;
}

OptionValue parse_option(const OptionSpec& spec, const std::string& text) {
  const std::string flag = option_flag(spec.name);
  if (takes_none(spec) && text == "none") return std::monostate{};
  switch (spec.type) {
    case OptionType::kInt:
      return parse_as<int64_t>(text, flag);
    case OptionType::kFloat:
      return parse_as<double>(text, flag);
    case OptionType::kBool:
      break;  // flags have no text
    case OptionType::kChoice:
      return text;  // make_options knows the choices
    case OptionType::kChoiceOrValues:
      if (text.find_first_of("0123456789,") == std::string::npos) return text;
      return parse_numbers(text, flag);
    case OptionType::kValues:
      return parse_numbers(text, flag);
  }
  throw_error(ErrorKind::kValue, flag, ": takes no value, got ", io::printable(text));
}

SchemeOptions::SchemeOptions(CLI::App& app, const Scheme& scheme) {
  for (const OptionSpec& spec : scheme.options) {
    const bool is_flag = spec.type == OptionType::kBool;
    std::string flags;
    const auto add = [&](const std::string& name) {
      const std::string flag = option_flag(name);
      flags += (flags.empty() ? "" : ",") + flag + (is_flag ? ",!--no-" + flag.substr(2) : "");
    };
    add(spec.name);
    for (const std::string& alias : spec.aliases) add(alias);
    const std::string about = description(spec);
    CLI::Option* option = nullptr;
    if (is_flag) {
      option = app.add_flag(std::as_const(flags), about);
      option->option_text(" ");
    } else {
      option = app.add_option(std::as_const(flags), about);
      option->type_name(join(spec.choices, "|") + type_label(spec.type));
    }
    option->group("Options of " + scheme.name);
    options_.emplace_back(&spec, option);
  }
}

GivenOptions SchemeOptions::given() const {
  GivenOptions values;
  for (const auto& [spec, option] : options_) {
    if (option->count() == 0) continue;
    values.emplace_back(spec->name, spec->type == OptionType::kBool
                                        ? OptionValue(option->as<bool>())
                                        : parse_option(*spec, option->as<std::string>()));
  }
  return values;
}

void fill_required(const Scheme& scheme, int64_t length, GivenOptions& given) {
  for (const OptionSpec& spec : scheme.options) {
    if (is_given(given, spec.name)) continue;
    if (is_filled(spec)) given.emplace_back(spec.name, filled_size(spec, length));
    if (spec.required && spec.type == OptionType::kValues) {
      given.emplace_back(spec.name, std::vector<double>{kFilledValue});
    }
  }
}

OptionValues required_sizes(int64_t length) {
  OptionValues sizes;
  for (const Scheme& scheme : schemes()) fill_required(scheme, length, sizes);
  return sizes;
}

void make_one_sided(const Scheme& scheme, GivenOptions& given) {
  for (const char* name : {"bidirectional", "symmetric"}) {
    const bool known = std::ranges::any_of(scheme.options, [&](const auto& s) {
      return s.name == name && s.type == OptionType::kBool;
    });
    if (!known) continue;
    for (const auto& [other, value] : given) {
      check_value(other != name || !std::get<bool>(value), "--causal: contradicts ",
                  option_flag(name));
    }
    if (!is_given(given, name)) given.emplace_back(name, false);
    return;
  }
  throw_error(ErrorKind::kValue, "--causal: ", scheme.name,
              " has no one-sided form; its matrices are the same with a causal mask");
}

}  // namespace relpos::cli
