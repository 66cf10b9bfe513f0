// Options of any scheme of the registry as options of a command.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "relpos/position.h"

namespace relpos::cli {

using GivenOptions = std::vector<std::pair<std::string, OptionValue>>;

// "max_distance" -> "--max-distance"
std::string option_flag(const std::string& name);

// A value in the words of the command line, as make_options takes it. Throws Error naming the flag.
OptionValue parse_option(const OptionSpec& spec, const std::string& text);

// One command option for each option of the scheme: bools as --name/--no-name, lists by commas,
// "none" where None is allowed.
class SchemeOptions {
 public:
  SchemeOptions(CLI::App& app, const Scheme& scheme);

  // The options that the command line has.
  GivenOptions given() const;

 private:
  std::vector<std::pair<const OptionSpec*, CLI::Option*>> options_;
};

// Adds the required integers that were not given: heads 4, dims 8, any other size `length`.
void fill_required(const Scheme& scheme, int64_t length, GivenOptions& given);

// The same for every required size of the registry, as defaults of a position's text.
OptionValues required_sizes(int64_t length);

// The scheme's one-sided form: bidirectional=False, or symmetric=False. Throws where there is none,
// or where the other form was asked for.
void make_one_sided(const Scheme& scheme, GivenOptions& given);

}  // namespace relpos::cli
