// The options of schemes: their types, their values by name, and the checks of both.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "relpos/export.h"

RELPOS_EXPORT_BEGIN
namespace relpos {

struct Scheme;

// None, bool, int, float, text, or a list of numbers. A copy for which there is no memory throws
// std::bad_alloc: gcc 12's copy of a std::variant of these destroys what it has not made.
struct OptionValue
    : std::variant<std::monostate, bool, int64_t, double, std::string, std::vector<double>> {
  using Variant =
      std::variant<std::monostate, bool, int64_t, double, std::string, std::vector<double>>;
  using Variant::variant;

  OptionValue() = default;
  OptionValue(const OptionValue& other) : OptionValue() {
    std::visit([this](const auto& held) { emplace<std::decay_t<decltype(held)>>(held); },
               static_cast<const Variant&>(other));
  }
  OptionValue(OptionValue&&) noexcept = default;
  OptionValue& operator=(const OptionValue& other) {
    if (this != &other) *this = OptionValue(other);
    return *this;
  }
  OptionValue& operator=(OptionValue&&) noexcept = default;
  ~OptionValue() = default;
};
// As the text of a position has it: "none", "true", "32", "0.5" (shortest digits that read back the
// same), a bare or quoted word, "[0.5, 0.25]".
std::string option_text(const OptionValue& value);
// What a user gave, by name.
using OptionValues = std::vector<std::pair<std::string, OptionValue>>;

enum class OptionType { kBool, kInt, kFloat, kChoice, kChoiceOrValues, kValues };

const char* option_type_name(OptionType type) noexcept;  // "bool", "choice or values", ...

struct OptionSpec {
  std::string name;
  OptionType type;
  OptionValue fallback{};  // the default; monostate means None, unless the option is required
  bool required = false;
  bool positional = false;  // may be given by place in Python, in the order of the specs
  std::vector<std::string> choices{};
  std::string doc;
  std::vector<std::string> aliases{};  // earlier names, which are read as `name`

  bool goes_by(std::string_view word) const noexcept;
};

// Values by name, complete and checked against the specs (make_options).
class OptionMap {
 public:
  void set(const std::string& name, OptionValue value);
  bool has(std::string_view name) const noexcept;  // present and not None
  bool flag(std::string_view name) const;
  int64_t integer(std::string_view name) const;
  double number(std::string_view name) const;  // ints widen
  const std::string& text(std::string_view name) const;
  const std::vector<double>* values(std::string_view name) const noexcept;  // null unless a list
  const OptionValues& items() const noexcept { return items_; }

 private:
  const OptionValue* find(std::string_view name) const noexcept;
  OptionValues items_;
};

// Fills defaults, checks types, choices and names; throws Error naming the option and scheme.
OptionMap make_options(const Scheme& scheme, const OptionValues& given);

// The options of a scheme, each bound to the member that holds it. A member's value is the default.
// Options named `heads`, `head_dim` or `value_dim` must be those of every call, where given.
class OptionList {
 public:
  using Choices = std::vector<std::string>;

  void required(const char* name, int64_t& size, const char* doc, int64_t least = 1);
  void required(const char* name, std::string& choice, const Choices& choices, const char* doc);
  void required(const char* name, std::vector<double>& values, const char* doc);
  void size(const char* name, int64_t& size, const char* doc, int64_t least = 1);
  void size(const char* name, std::optional<int64_t>& size, const char* doc, int64_t least = 1);
  void flag(const char* name, bool& flag, const char* doc);
  void number(const char* name, double& number, const char* doc);
  void number(const char* name, std::optional<double>& number, const char* doc);
  void values(const char* name, std::optional<std::vector<double>>& values, const char* doc);
  void choice(const char* name, std::string& choice, const Choices& choices, const char* doc);
  void choice_or_values(const char* name, std::variant<std::string, std::vector<double>>& either,
                        const Choices& choices, const char* doc);
  // Another name under which the option before it may be given.
  void alias(const char* name);
  // In Python, what follows is given by name alone.
  void keyword_only() { positional_ = false; }

 private:
  template <typename T>
  friend std::vector<OptionSpec> list_options();
  template <typename T>
  friend T read_options(const Scheme& scheme, const OptionMap& values);

  void add(OptionSpec spec);
  int64_t checked(const char* name, int64_t size, int64_t least) const;

  std::vector<OptionSpec> specs_;
  const char* scheme_ = nullptr;
  const OptionMap* values_ = nullptr;  // null: the specs are listed
  bool positional_ = true;
};

}  // namespace relpos
RELPOS_EXPORT_END
