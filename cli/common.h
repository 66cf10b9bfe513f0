// What every command shares: exit codes, errors of one line, output.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "relpos/position.h"

namespace relpos::cli {

enum ExitCode { kOk = 0, kFailedCheck = 1, kBadInput = 2, kOutOfMemory = 3, kInterrupted = 130 };

std::string join(const std::vector<std::string>& words, std::string_view separator = ", ");
std::string shape_text(const std::vector<int64_t>& shape);

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
