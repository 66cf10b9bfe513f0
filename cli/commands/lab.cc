// relpos lab: the laboratory is Python; this becomes it.
#include <cstring>
#include <string>
#include <vector>

#include "cli/commands/commands.h"
#include "cli/common.h"
#include "cli/machine/python.h"

namespace relpos::cli {
namespace {

constexpr const char* kExamples =
    "  relpos lab                         train every scheme on Bach chorales, test on long "
    "pieces\n"
    "  relpos lab --schemes alibi,rope --steps 50\n"
    "  relpos lab --positions t5,mymodule:KERPLE\n"
    "  relpos lab --text FILE             the same on your own text\n";

}  // namespace

void add_lab(CLI::App& tool) {
  CLI::App* app =
      tool.add_subcommand("lab", "Train a small model per scheme, test it at longer lengths");
  app->footer(std::string(kExamples) +
              "\nThe same as python -m relpos.lab, whose --help lists the options.");
}

int run_lab(int argc, char** argv) {
  const bool help =
      argc > 0 && (std::strcmp(argv[0], "--help") == 0 || std::strcmp(argv[0], "-h") == 0);
  if (help) print(std::string("Examples:\n") + kExamples + "\n");
  const int code = become_python("relpos lab", "relpos.lab", {argv, argv + argc});
  return help && find_python().empty() ? kOk : code;
}

}  // namespace relpos::cli
