// relpos lab: the laboratory is Python; this finds an interpreter and becomes it.
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "commands.h"
#include "common.h"

namespace relpos::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kExamples =
    "  relpos lab                         train every scheme on Bach chorales, test on long "
    "pieces\n"
    "  relpos lab --schemes alibi,rope --steps 50\n"
    "  relpos lab --text FILE             the same on your own text\n";

std::string find_python() {
  if (const char* given = std::getenv("RELPOS_PYTHON"); given != nullptr && *given != '\0') {
    return given;
  }
  std::error_code code;
  const fs::path folder = fs::read_symlink("/proc/self/exe", code).parent_path();
  for (const fs::path& python : {fs::path(".venv/bin/python"), folder / "python",
                                 folder.parent_path() / ".venv/bin/python"}) {
    if (::access(python.c_str(), X_OK) == 0) return python.string();
  }
  return "";
}

}  // namespace

void add_lab(CLI::App& tool) {
  CLI::App* app = tool.add_subcommand("lab", "Train short, test long: the schemes on real music");
  app->footer(std::string(kExamples) +
              "\nThe same as python -m relpos.lab, which names the options.");
}

int run_lab(int argc, char** argv) {
  const std::string python = find_python();
  const bool help =
      argc > 0 && (std::strcmp(argv[0], "--help") == 0 || std::strcmp(argv[0], "-h") == 0);
  if (help) print(std::string("Examples:\n") + kExamples + "\n");
  if (python.empty()) {
    note(
        "relpos lab: needs Python with relpos[torch]: set RELPOS_PYTHON, or make .venv here "
        "(python3 "
        "-m venv .venv && .venv/bin/pip install 'relpos[torch]')");
    return help ? kOk : kBadInput;
  }
  std::vector<std::string> words{python, "-m", "relpos.lab"};
  words.insert(words.end(), argv, argv + argc);
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ::execvp(python.c_str(), pointers.data());
  note("relpos lab: cannot run " + python + ": " + std::strerror(errno));
  return kBadInput;
}

}  // namespace relpos::cli
