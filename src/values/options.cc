#include "relpos/options.h"

#include <algorithm>
#include <cmath>

#include "base/nearest.h"
#include "relpos/scheme.h"

namespace relpos {

const char* option_type_name(OptionType type) noexcept {
  switch (type) {
    case OptionType::kBool:
      return "bool";
    case OptionType::kInt:
      return "int";
    case OptionType::kFloat:
      return "float";
    case OptionType::kChoice:
      return "choice";
    case OptionType::kChoiceOrValues:
      return "choice or values";
    case OptionType::kValues:
      return "values";
  }
  return "";
}

namespace {

bool is_none(const OptionValue& value) { return std::holds_alternative<std::monostate>(value); }

bool is_number(const OptionValue& value) {
  return std::holds_alternative<int64_t>(value) || std::holds_alternative<double>(value);
}

std::string expected(const OptionSpec& spec) {
  switch (spec.type) {
    case OptionType::kBool:
      return "true or false";
    case OptionType::kInt:
      return "an integer";
    case OptionType::kFloat:
      return "a number";
    case OptionType::kChoice:
      return "one of " + quoted_list(spec.choices);
    case OptionType::kChoiceOrValues:
      return "a list of numbers or one of " + quoted_list(spec.choices);
    case OptionType::kValues:
      return "a number or a list of numbers";
  }
  return "a value";
}

[[noreturn]] void refuse(const Scheme& scheme, const OptionSpec& spec, ErrorKind kind,
                         const OptionValue& value) {
  throw_error(kind, scheme.name, ": ", spec.name, ": expected ", expected(spec), ", got ",
              option_text(value));
}

bool fits_type(OptionType type, const OptionValue& value) {
  switch (type) {
    case OptionType::kBool:
      return std::holds_alternative<bool>(value);
    case OptionType::kInt:
      return std::holds_alternative<int64_t>(value);
    case OptionType::kFloat:
      return is_number(value);
    case OptionType::kChoice:
      return std::holds_alternative<std::string>(value);
    case OptionType::kChoiceOrValues:
      return std::holds_alternative<std::string>(value) ||
             std::holds_alternative<std::vector<double>>(value);
    case OptionType::kValues:
      return is_number(value) || std::holds_alternative<std::vector<double>>(value);
  }
  return false;
}

void check_finite(const Scheme& scheme, const OptionSpec& spec, double value) {
  check_value(std::isfinite(value), scheme.name, ": ", spec.name, ": expected finite numbers, got ",
              value);
}

// The value in the type of its spec, checked.
OptionValue checked(const Scheme& scheme, const OptionSpec& spec, OptionValue value) {
  if (is_none(value)) {
    check_value(!spec.required, scheme.name, ": ", spec.name, ": missing; expected ",
                expected(spec), " (", spec.doc, ")");
    if (!is_none(spec.fallback)) refuse(scheme, spec, ErrorKind::kType, value);
    return value;
  }
  if (!fits_type(spec.type, value)) refuse(scheme, spec, ErrorKind::kType, value);
  const bool widens = spec.type == OptionType::kFloat || spec.type == OptionType::kValues;
  if (const auto* integer = std::get_if<int64_t>(&value); integer != nullptr && widens) {
    value.emplace<double>(static_cast<double>(*integer));
  }
  if (const auto* number = std::get_if<double>(&value);
      spec.type == OptionType::kValues && number) {
    value = std::vector<double>{*number};
  }
  if (const auto* number = std::get_if<double>(&value)) check_finite(scheme, spec, *number);
  if (const auto* list = std::get_if<std::vector<double>>(&value)) {
    for (double number : *list) check_finite(scheme, spec, number);
  }
  if (const auto* word = std::get_if<std::string>(&value)) {
    if (std::find(spec.choices.begin(), spec.choices.end(), *word) == spec.choices.end()) {
      refuse(scheme, spec, ErrorKind::kValue, value);
    }
  }
  return value;
}

template <typename T>
const T& get(const OptionValue* value, std::string_view name, const char* type) {
  const T* held = value == nullptr ? nullptr : std::get_if<T>(value);
  check_value(held != nullptr, "option ", name, ": expected ", type, ", got ",
              value == nullptr ? std::string("nothing") : option_text(*value));
  return *held;
}

}  // namespace

bool OptionSpec::goes_by(std::string_view word) const noexcept {
  return word == name || std::find(aliases.begin(), aliases.end(), word) != aliases.end();
}

void OptionMap::set(const std::string& name, OptionValue value) {
  for (auto& item : items_) {
    if (item.first == name) {
      item.second = std::move(value);
      return;
    }
  }
  items_.emplace_back(name, std::move(value));
}

const OptionValue* OptionMap::find(std::string_view name) const noexcept {
  for (const auto& item : items_) {
    if (item.first == name) return &item.second;
  }
  return nullptr;
}

bool OptionMap::has(std::string_view name) const noexcept {
  const OptionValue* value = find(name);
  return value != nullptr && !is_none(*value);
}

bool OptionMap::flag(std::string_view name) const { return get<bool>(find(name), name, "a bool"); }

int64_t OptionMap::integer(std::string_view name) const {
  return get<int64_t>(find(name), name, "an integer");
}

double OptionMap::number(std::string_view name) const {
  const OptionValue* value = find(name);
  if (value != nullptr && std::holds_alternative<int64_t>(*value)) {
    return static_cast<double>(std::get<int64_t>(*value));
  }
  return get<double>(value, name, "a number");
}

const std::string& OptionMap::text(std::string_view name) const {
  return get<std::string>(find(name), name, "text");
}

const std::vector<double>* OptionMap::values(std::string_view name) const noexcept {
  return std::get_if<std::vector<double>>(find(name));
}

OptionMap make_options(const Scheme& scheme, const OptionValues& given) {
  OptionMap asked;
  for (const auto& [name, value] : given) {
    const auto spec =
        std::find_if(scheme.options.begin(), scheme.options.end(),
                     // clang before 16 captures a structured binding only so
                     [&wanted = name](const OptionSpec& each) { return each.goes_by(wanted); });
    if (spec == scheme.options.end()) {
      std::vector<std::string> names;
      for (const OptionSpec& each : scheme.options) names.push_back(each.name);
      throw_error(ErrorKind::kValue, scheme.name, ": no option '", name, "'",
                  names.empty() ? std::string("; it has none") : suggestion(name, names));
    }
    const bool twice = std::any_of(asked.items().begin(), asked.items().end(),
                                   [&](const auto& item) { return item.first == spec->name; });
    check_value(!twice, scheme.name, ": ", spec->name, ": given twice");
    asked.set(spec->name, value);
  }
  OptionMap options;
  for (const OptionSpec& spec : scheme.options) {
    OptionValue value = spec.fallback;
    for (const auto& item : asked.items()) {
      if (item.first == spec.name) value = item.second;
    }
    options.set(spec.name, checked(scheme, spec, std::move(value)));
  }
  return options;
}

void OptionList::add(OptionSpec spec) {
  spec.positional = positional_;
  specs_.push_back(std::move(spec));
}

void OptionList::alias(const char* name) {
  if (values_ == nullptr) specs_.back().aliases.emplace_back(name);
}

int64_t OptionList::checked(const char* name, int64_t size, int64_t least) const {
  const std::string_view text = name;
  const bool of_call = text == "heads" || text.ends_with("_dim");
  const int64_t largest = of_call ? kLargestHeads : kLargestSize;
  check_value(size >= least && size <= largest, scheme_, ": ", name, ": expected ", least, " to ",
              largest, ", got ", size);
  return size;
}

void OptionList::required(const char* name, int64_t& size, const char* doc, int64_t least) {
  if (values_ == nullptr) {
    return add({.name = name, .type = OptionType::kInt, .required = true, .doc = doc});
  }
  size = checked(name, values_->integer(name), least);
}

void OptionList::required(const char* name, std::string& choice, const Choices& choices,
                          const char* doc) {
  if (values_ == nullptr) {
    return add({.name = name,
                .type = OptionType::kChoice,
                .required = true,
                .choices = choices,
                .doc = doc});
  }
  choice = values_->text(name);
}

void OptionList::required(const char* name, std::vector<double>& values, const char* doc) {
  if (values_ == nullptr) {
    return add({.name = name, .type = OptionType::kValues, .required = true, .doc = doc});
  }
  values = *values_->values(name);
}

void OptionList::size(const char* name, int64_t& size, const char* doc, int64_t least) {
  if (values_ == nullptr) {
    return add({.name = name, .type = OptionType::kInt, .fallback = size, .doc = doc});
  }
  size = checked(name, values_->integer(name), least);
}

void OptionList::size(const char* name, std::optional<int64_t>& size, const char* doc,
                      int64_t least) {
  if (values_ == nullptr) {
    OptionSpec spec{.name = name, .type = OptionType::kInt, .doc = doc};
    if (size) spec.fallback = *size;
    return add(std::move(spec));
  }
  size.reset();
  if (values_->has(name)) size = checked(name, values_->integer(name), least);
}

void OptionList::flag(const char* name, bool& flag, const char* doc) {
  if (values_ == nullptr) {
    return add({.name = name, .type = OptionType::kBool, .fallback = flag, .doc = doc});
  }
  flag = values_->flag(name);
}

void OptionList::number(const char* name, double& number, const char* doc) {
  if (values_ == nullptr) {
    return add({.name = name, .type = OptionType::kFloat, .fallback = number, .doc = doc});
  }
  number = values_->number(name);
}

void OptionList::number(const char* name, std::optional<double>& number, const char* doc) {
  if (values_ == nullptr) {
    OptionSpec spec{.name = name, .type = OptionType::kFloat, .doc = doc};
    if (number) spec.fallback = *number;
    return add(std::move(spec));
  }
  number.reset();
  if (values_->has(name)) number = values_->number(name);
}

void OptionList::values(const char* name, std::optional<std::vector<double>>& values,
                        const char* doc) {
  if (values_ == nullptr) {
    OptionSpec spec{.name = name, .type = OptionType::kValues, .doc = doc};
    if (values) spec.fallback = *values;
    return add(std::move(spec));
  }
  values.reset();
  if (values_->has(name)) values = *values_->values(name);
}

void OptionList::choice(const char* name, std::string& choice, const Choices& choices,
                        const char* doc) {
  if (values_ == nullptr) {
    return add({.name = name,
                .type = OptionType::kChoice,
                .fallback = choice,
                .choices = choices,
                .doc = doc});
  }
  choice = values_->text(name);
}

void OptionList::choice_or_values(const char* name,
                                  std::variant<std::string, std::vector<double>>& either,
                                  const Choices& choices, const char* doc) {
  if (values_ == nullptr) {
    return add({.name = name,
                .type = OptionType::kChoiceOrValues,
                .fallback = std::get<std::string>(either),
                .choices = choices,
                .doc = doc});
  }
  if (const std::vector<double>* numbers = values_->values(name)) {
    either = *numbers;
  } else {
    either = values_->text(name);
  }
}

}  // namespace relpos
