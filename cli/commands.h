// The commands. Each adds itself to the tool and, when it is the one called, sets `run`.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace relpos::cli {

using Run = std::function<int()>;  // returns an exit code; throws relpos::Error

void add_list(CLI::App& tool, Run& run);
void add_show(CLI::App& tool, Run& run);
void add_compare(CLI::App& tool, Run& run);
void add_attend(CLI::App& tool, Run& run);
void add_check(CLI::App& tool, Run& run);
void add_selftest(CLI::App& tool, Run& run);
void add_bench(CLI::App& tool, Run& run);
// Only for the help of the tool: run_lab takes its arguments unparsed.
void add_lab(CLI::App& tool);
int run_lab(int argc, char** argv);

}  // namespace relpos::cli
