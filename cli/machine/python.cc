#include "cli/machine/python.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/common.h"
#include "relpos/error.h"

namespace relpos::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kCannotRun = 127;  // as shells say it

// The folder of a module that is run by name comes first on Python's path, and that of -c is the
// current one: without it, nothing there takes the place of PyTorch. (-P is of Python 3.11.)
std::string start_text(const std::string& who, const std::string& module) {
  return "import sys\n"
         "sys.path[:] = filter(None, sys.path)\n"
         "import importlib.util, runpy\n"
         "if importlib.util.find_spec('relpos') is None:\n"
         "  print('" +
         who +
         ":', sys.executable, \"has no relpos: pip install 'relpos[torch]'\",\n"
         "        file=sys.stderr)\n"
         "  sys.exit(2)\n"
         "runpy.run_module('" +
         module + "', run_name='__main__', alter_sys=True)\n";
}

bool runs(const fs::path& program) {
  std::error_code code;
  return fs::is_regular_file(program, code) && ::access(program.c_str(), X_OK) == 0;
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

std::string missing_text() {
  return "needs Python with relpos[torch], and there is none beside this tool: install it with pip "
         "install 'relpos[torch]' and call the relpos of that environment, or set RELPOS_PYTHON to "
         "its Python";
}

// Returns only where it cannot.
void start(const std::string& python, const std::string& who, const std::string& module,
           const std::vector<std::string>& more) {
  drop_empty_entries("PYTHONPATH");
  std::vector<std::string> words{python, "-c", start_text(who, module)};
  words.insert(words.end(), more.begin(), more.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ::execvp(python.c_str(), pointers.data());
}

std::string read_all(int from) {
  std::string text;
  std::array<char, 1 << 16> some;
  for (;;) {
    const ssize_t count = ::read(from, some.data(), some.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return text;
    text.append(some.data(), static_cast<size_t>(count));
  }
}

// What a process of these words writes to its stdout, and the status with which it ends.
std::pair<std::string, int> output_of(const std::string& python, const std::string& who,
                                      const std::string& request) {
  int ends[2];
  check_value(::pipe(ends) == 0, "cannot start ", python, ": ", std::strerror(errno));
  const pid_t child = ::fork();
  check_value(child >= 0, "cannot start ", python, ": ", std::strerror(errno));
  if (child == 0) {
    ::dup2(ends[1], STDOUT_FILENO);
    ::close(ends[0]);
    ::close(ends[1]);
    start(python, who, "relpos._tool", {request});
    std::_Exit(kCannotRun);
  }
  ::close(ends[1]);
  std::string text = read_all(ends[0]);
  ::close(ends[0]);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return {std::move(text), status};
}

}  // namespace

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

int become_python(const std::string& who, const std::string& module,
                  const std::vector<std::string>& words) {
  const std::string python = find_python();
  if (python.empty()) {
    note(who + ": " + missing_text());
  } else {
    start(python, who, module, words);
    note(who + ": cannot run " + python + ": " + std::strerror(errno));
  }
  return kBadInput;
}

nlohmann::ordered_json ask_python(const std::string& who, const nlohmann::ordered_json& request) {
  const std::string python = find_python();
  check_value(!python.empty(), missing_text());
  const auto [text, status] = output_of(python, who, request.dump());
  const bool stopped = WIFSIGNALED(status) && WTERMSIG(status) == SIGINT;
  if (stopped) throw_error(ErrorKind::kCancelled, "interrupted");
  const bool ran = !WIFEXITED(status) || WEXITSTATUS(status) != kCannotRun;
  check_value(ran, "cannot run ", python);
  nlohmann::ordered_json reply = nlohmann::ordered_json::parse(text, nullptr, false);
  check_value(reply.is_object(), python, " gave no answer, and ended with status ",
              WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
  if (reply.contains("error")) throw_error(ErrorKind::kValue, reply["error"].get<std::string>());
  return reply;
}

}  // namespace relpos::cli
