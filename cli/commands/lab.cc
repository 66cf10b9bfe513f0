// relpos lab: the laboratory is Python; this finds an interpreter and becomes it.
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/commands/commands.h"
#include "cli/common.h"

namespace relpos::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kExamples =
    "  relpos lab                         train every scheme on Bach chorales, test on long "
    "pieces\n"
    "  relpos lab --schemes alibi,rope --steps 50\n"
    "  relpos lab --text FILE             the same on your own text\n";

// The folder of a module that is run by name comes first on Python's path, and that of -c is the
// current one: without it, nothing there takes the place of PyTorch. (-P is of Python 3.11.)
constexpr const char* kStart =
    "import sys\n"
    "sys.path[:] = filter(None, sys.path)\n"
    "import importlib.util, runpy\n"
    "if importlib.util.find_spec('relpos') is None:\n"
    "  print('relpos lab:', sys.executable, \"has no relpos: pip install 'relpos[torch]'\",\n"
    "        file=sys.stderr)\n"
    "  sys.exit(2)\n"
    "runpy.run_module('relpos.lab', run_name='__main__', alter_sys=True)\n";

bool runs(const fs::path& program) {
  std::error_code code;
  return fs::is_regular_file(program, code) && ::access(program.c_str(), X_OK) == 0;
}

// $RELPOS_PYTHON, else that of the environment of this tool: beside it, or, in a build folder, in
// the .venv beside that. Never one of the current folder.
std::string find_python() {
  if (const char* given = std::getenv("RELPOS_PYTHON"); given != nullptr && *given != '\0') {
    return given;
  }
  std::error_code code;
  const fs::path folder = fs::read_symlink("/proc/self/exe", code).parent_path();
  if (folder.empty()) return "";
  for (const char* name : {"python", "python3"}) {
    if (runs(folder / name)) return folder / name;
  }
  for (fs::path above = folder; above != above.root_path(); above = above.parent_path()) {
    const fs::path python = above.parent_path() / ".venv/bin/python";
    if (above.filename() == "build") return runs(python) ? python.string() : "";
  }
  return "";
}

// An empty entry of PYTHONPATH means the current folder.
void drop_empty_entries(const char* variable) {
  const char* given = std::getenv(variable);
  if (given == nullptr) return;
  std::vector<std::string> entries = split(given, ':');
  std::erase(entries, "");
  if (entries.empty()) {
    ::unsetenv(variable);
  } else {
    ::setenv(variable, join(entries, ":").c_str(), 1);
  }
}

}  // namespace

void add_lab(CLI::App& tool) {
  CLI::App* app =
      tool.add_subcommand("lab", "Train a small model per scheme, test it at longer lengths");
  app->footer(std::string(kExamples) +
              "\nThe same as python -m relpos.lab, whose --help lists the options.");
}

int run_lab(int argc, char** argv) {
  const std::string python = find_python();
  const bool help =
      argc > 0 && (std::strcmp(argv[0], "--help") == 0 || std::strcmp(argv[0], "-h") == 0);
  if (help) print(std::string("Examples:\n") + kExamples + "\n");
  if (python.empty()) {
    note(
        "relpos lab: needs Python with relpos[torch], and there is none beside this tool: install "
        "it with pip install 'relpos[torch]' and call the relpos of that environment, or set "
        "RELPOS_PYTHON to its Python");
    return help ? kOk : kBadInput;
  }
  drop_empty_entries("PYTHONPATH");
  std::vector<std::string> words{python, "-c", kStart};
  words.insert(words.end(), argv, argv + argc);
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ::execvp(python.c_str(), pointers.data());
  note("relpos lab: cannot run " + python + ": " + std::strerror(errno));
  return kBadInput;
}

}  // namespace relpos::cli
