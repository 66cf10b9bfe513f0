// relpos list: the registry.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "commands.h"
#include "common.h"
#include "relpos/position.h"
#include "scheme_options.h"

namespace relpos::cli {
namespace {

using Json = nlohmann::ordered_json;

Json option_json(const OptionSpec& spec) {
  Json object = {{"name", spec.name},
                 {"flag", option_flag(spec.name)},
                 {"type", option_type_name(spec.type)},
                 {"required", spec.required}};
  if (!spec.required) object["default"] = json_option(spec.fallback);
  if (!spec.choices.empty()) object["choices"] = spec.choices;
  object["doc"] = spec.doc;
  return object;
}

int list(bool json) {
  if (json) {
    Json list = Json::array();
    for (const Scheme& scheme : schemes()) {
      Json options = Json::array();
      for (const OptionSpec& spec : scheme.options) options.push_back(option_json(spec));
      list.push_back({{"name", scheme.name},
                      {"class", scheme.class_name},
                      {"summary", scheme.summary},
                      {"source", scheme.source},
                      {"options", options}});
    }
    print_json({{"schemes", list}});
    return kOk;
  }
  size_t name_width = 0, class_width = 0;
  for (const Scheme& scheme : schemes()) {
    name_width = std::max(name_width, scheme.name.size());
    class_width = std::max(class_width, scheme.class_name.size());
  }
  std::string text;
  for (const Scheme& scheme : schemes()) {
    text += scheme.name + std::string(name_width + 2 - scheme.name.size(), ' ') +
            scheme.class_name + std::string(class_width + 2 - scheme.class_name.size(), ' ') +
            scheme.summary + "\n";
  }
  print(text);
  return kOk;
}

}  // namespace

void add_list(CLI::App& tool, Run& run) {
  CLI::App* app =
      tool.add_subcommand("list", "List every scheme: its name, Python class and what it does");
  app->footer(
      "  relpos list\n  relpos list --json\n  relpos show t5 --help        the options of one");
  auto json = std::make_shared<bool>(false);
  app->add_flag("--json", *json, "print schemes, sources and options as JSON");
  app->callback([&run, json] { run = [json] { return list(*json); }; });
}

}  // namespace relpos::cli
