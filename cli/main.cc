// The relpos tool.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands/commands.h"
#include "cli/commands/own.h"
#include "cli/common.h"
#include "cli/options/help.h"
#include "relpos/error.h"
#include "relpos/version.h"

namespace relpos::cli {
namespace {

int fail(const std::string& command, std::string text, int code) {
  std::ranges::replace(text, '\n', ' ');
  note(command + ": " + text);
  return code;
}

// An exception that the library or a command threw.
int fail_by(const std::string& command, const std::exception_ptr& thrown) {
  try {
    const Error error = as_error(thrown);
    if (error.kind() == ErrorKind::kCancelled) return fail(command, "interrupted", kInterrupted);
    const bool memory = error.kind() == ErrorKind::kMemory;
    return fail(command, error.what(), memory ? kOutOfMemory : kBadInput);
  } catch (const std::exception& error) {
    return fail(command, error.what(), kBadInput);
  } catch (...) {
    return fail(command, "an unknown error", kBadInput);
  }
}

// `relpos` alone prints its commands. Examples and exit codes are in `relpos --help`.
std::string short_help(const CLI::App& tool) {
  std::string text = "usage: relpos COMMAND [OPTIONS]\n\n";
  for (const CLI::App* command : tool.get_subcommands({})) {
    text += text_of("  %-10s%s\n", command->get_name().c_str(), command->get_description().c_str());
  }
  return text + "\nrelpos --help has examples and exit codes, relpos COMMAND --help the options.\n";
}

// The words of the command line, the last first, as CLI11 takes them: `relpos show module:Class` as
// the subcommand for all such.
std::vector<std::string> words_of(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() > 1 && words[0] == "show" && is_own(words[1])) {
    words.insert(words.begin() + 1, kShowOwn);
  }
  std::ranges::reverse(words);
  return words;
}

int run_tool(int argc, char** argv) {
  CLI::App tool("Exact attention with relative positions", "relpos");
  tool.formatter(std::make_shared<HelpFormatter>());
  tool.footer(
      "  relpos list\n"
      "  relpos show alibi --heads 8 --query 4 --key 4\n"
      "  relpos compare 'alibi(heads=8)' 'alibi(heads=8, slopes=geometric)'\n"
      "  relpos attend --query q.npy --key k.npy --value v.npy --position 'rope(layout=half)' "
      "--causal --out o.npy\n"
      "  relpos check t5 model.safetensors\n"
      "  relpos selftest\n"
      "  relpos bench --scheme t5\n\n"
      "Exit codes: 0 ok, 1 failed check, 2 bad input, 3 out of memory, 130 interrupted.");
  tool.set_version_flag("--version", "relpos " RELPOS_VERSION);
  tool.require_subcommand(1);
  Run run;
  add_list(tool, run);
  add_show(tool, run);
  add_compare(tool, run);
  add_attend(tool, run);
  add_check(tool, run);
  add_selftest(tool, run);
  add_bench(tool, run);
  add_lab(tool);
  std::string command = "relpos";
  try {
    if (argc <= 1) {
      print(short_help(tool));
      return kOk;
    }
    if (std::strcmp(argv[1], "lab") == 0) return run_lab(argc - 2, argv + 2);
    tool.parse(words_of(argc, argv));
    command = command_name(tool);
    return run();
  } catch (const CLI::CallForHelp&) {
    print(help_text(tool));
    return kOk;
  } catch (const CLI::CallForVersion& version) {
    print(std::string(version.what()) + "\n");
    return kOk;
  } catch (const CLI::ParseError& error) {
    return fail(command_name(tool), parse_error_text(tool, error), kBadInput);
  } catch (...) {
    return fail_by(command, std::current_exception());
  }
}

}  // namespace
}  // namespace relpos::cli

int main(int argc, char** argv) { return relpos::cli::run_tool(argc, argv); }
