#include "bench_child.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "common.h"
#include "relpos/error.h"
#include "signals.h"

extern char** environ;

namespace relpos::cli {

std::string run_self(std::vector<std::string> arguments) {
  std::error_code code;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe", code).string();
  check_value(!code, "cannot find the running program, which this row starts again");
  const std::string words = join(arguments, " ");
  arguments.insert(arguments.begin(), self);
  std::vector<char*> pointers;
  for (std::string& word : arguments) pointers.push_back(word.data());
  pointers.push_back(nullptr);

  std::array<int, 2> ends{};
  check_value(::pipe(ends.data()) == 0, "pipe: ", std::strerror(errno));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addclose(&actions, ends[0]);
  pid_t child = 0;
  const int failed =
      ::posix_spawn(&child, self.c_str(), &actions, nullptr, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  std::string text;
  std::array<char, 4096> chunk{};
  while (failed == 0) {
    const ssize_t got = ::read(ends[0], chunk.data(), chunk.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(chunk.data(), static_cast<size_t>(got));
  }
  ::close(ends[0]);
  check_value(failed == 0, "cannot start ", self, ": ", std::strerror(failed));
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  throw_if_interrupted();
  check_value(status == 0, "relpos ", words, " failed");
  return text;
}

}  // namespace relpos::cli
