// Help with the examples first, and parse errors of one line.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "cli/common.h"
#include "relpos/error.h"

namespace relpos::cli {

// Prints an app's footer as its examples, right after the description; breaks long lines.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(34); }
  std::string make_description(const CLI::App* app) const override;
  std::string make_footer(const CLI::App* app) const override;
  std::string make_option_name(const CLI::Option* option, bool positional) const override;
  std::string make_option_desc(const CLI::Option* option) const override;
};

// The deepest command that the arguments reached.
const CLI::App& active_command(const CLI::App& tool);
std::string command_name(const CLI::App& tool);  // "relpos show t5"
std::string help_text(const CLI::App& tool);     // of the active command

// One of a few words.
CLI::Option* add_choice(CLI::App& app, const std::string& flag, std::string& value,
                        const std::vector<std::string>& choices, const std::string& doc);

// A number of the type of `value`, or of what it may hold: the whole text is one, in its range.
template <typename T>
CLI::Option* add_number(CLI::App& app, const std::string& flag, T& value, const std::string& doc) {
  using Number = typename decltype(std::optional(value))::value_type;
  const auto read = [&value, flag](const std::string& text) {
    try {
      value = parse_as<Number>(text, flag);
    } catch (const Error& error) {
      throw CLI::ConversionError(error.what(), CLI::ExitCodes::ConversionError);
    }
  };
  return app.add_option_function<std::string>(flag, read, doc)
      ->type_name(std::is_floating_point_v<Number> ? "FLOAT"
                  : std::is_unsigned_v<Number>     ? "UINT"
                                                   : "INT");
}

// Says what was wrong, and names the nearest option or command.
std::string parse_error_text(const CLI::App& tool, const CLI::ParseError& error);

}  // namespace relpos::cli
