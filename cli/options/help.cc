#include "cli/options/help.h"

#include <algorithm>
#include <vector>

#include "base/nearest.h"
#include "cli/common.h"
#include "io/file.h"

namespace relpos::cli {

std::string HelpFormatter::make_description(const CLI::App* app) const {
  const std::string examples = app->get_footer();
  return app->get_description() + "\n\n" +
         (examples.empty() ? "" : "Examples:\n" + examples + "\n\n");
}

std::string HelpFormatter::make_footer(const CLI::App*) const { return ""; }

// CLI11 marks the negative name of a flag with its value.
std::string HelpFormatter::make_option_name(const CLI::Option* option, bool positional) const {
  std::string name = CLI::Formatter::make_option_name(option, positional);
  const std::string mark = "{false}";
  if (const size_t at = name.find(mark); at != std::string::npos) name.erase(at, mark.size());
  return name;
}

std::string HelpFormatter::make_option_desc(const CLI::Option* option) const {
  return join(wrapped(option->get_description(), 64), "\n");
}

const CLI::App& active_command(const CLI::App& tool) {
  const CLI::App* app = &tool;
  while (!app->get_subcommands().empty()) app = app->get_subcommands().front();
  return *app;
}

std::string command_name(const CLI::App& tool) {
  std::vector<std::string> names;
  for (const CLI::App* app = &active_command(tool); app != nullptr; app = app->get_parent()) {
    names.insert(names.begin(), app->get_name());
  }
  return join(names, " ");
}

std::string help_text(const CLI::App& tool) {
  const CLI::App& app = active_command(tool);
  const std::string name = command_name(tool);
  return app.help(name.substr(0, name.size() - std::min(name.size(), app.get_name().size() + 1)));
}

CLI::Option* add_choice(CLI::App& app, const std::string& flag, std::string& value,
                        const std::vector<std::string>& choices, const std::string& doc) {
  CLI::Validator known = CLI::IsMember(choices);
  return app.add_option(flag, value, doc)
      ->type_name(join(choices, "|"))
      ->check(known.description(""));
}

std::string parse_error_text(const CLI::App& tool, const CLI::ParseError& error) {
  const CLI::App& app = active_command(tool);
  const std::string help = " (see " + command_name(tool) + " --help)";
  std::vector<std::string> commands;
  for (const CLI::App* child : app.get_subcommands({})) commands.push_back(child->get_name());
  const std::vector<std::string> extras = app.remaining();
  if (!extras.empty() && extras.front().starts_with('-')) {
    const std::string flag = extras.front().substr(0, extras.front().find('='));
    std::vector<std::string> flags;
    for (const CLI::Option* option : app.get_options()) {
      for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
    }
    const std::string near = nearest_name(flag, flags);
    return "unknown option " + io::printable(flag) +
           (near.empty() ? "" : "; did you mean " + near + "?") + help;
  }
  const bool scheme = app.get_parent() != nullptr;
  if (!extras.empty()) {
    const std::string kind = commands.empty() ? "argument " : scheme ? "scheme " : "command ";
    return "unknown " + kind + io::printable(extras.front()) +
           (commands.empty() ? "" : suggestion(extras.front(), commands)) + help;
  }
  if (!commands.empty()) {
    return std::string("expected a ") + (scheme ? "scheme: " : "command: ") + join(commands) + help;
  }
  return error.what() + help;
}

}  // namespace relpos::cli
