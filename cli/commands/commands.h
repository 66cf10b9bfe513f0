// The commands. Each adds itself to the tool and, when it is the one called, sets `run`.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>

namespace relpos::cli {

using Run = std::function<int()>;  // returns an exit code; throws relpos::Error

// The arguments that the options of a command fill, with which it is called.
template <typename Arguments>
Arguments& add_arguments(CLI::App& app, Run& run, int (*call)(const Arguments&)) {
  auto arguments = std::make_shared<Arguments>();
  app.callback([&run, arguments, call] { run = [arguments, call] { return call(*arguments); }; });
  return *arguments;
}

void add_list(CLI::App& tool, Run& run);
void add_show(CLI::App& tool, Run& run);
// The word that the tool puts before module:Class, for a command of its own.
inline constexpr const char* kShowOwn = "own";
void add_compare(CLI::App& tool, Run& run);
void add_attend(CLI::App& tool, Run& run);
void add_check(CLI::App& tool, Run& run);
void add_selftest(CLI::App& tool, Run& run);
void add_bench(CLI::App& tool, Run& run);
// Only for the help of the tool: run_lab takes its arguments unparsed.
void add_lab(CLI::App& tool);
int run_lab(int argc, char** argv);

}  // namespace relpos::cli
