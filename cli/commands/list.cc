// relpos list: the registry, by family, or what of it has certain words.
#include <algorithm>
#include <cctype>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/commands/commands.h"
#include "cli/common.h"
#include "cli/options/scheme_options.h"
#include "cli/print/matrix_print.h"
#include "io/file.h"
#include "relpos/error.h"
#include "relpos/family.h"
#include "relpos/position.h"

namespace relpos::cli {
namespace {

using Json = nlohmann::ordered_json;

struct ListArguments {
  std::vector<std::string> words;
  bool json = false;
};

std::string lowered(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// The schemes that have every one of the words.
std::vector<const Scheme*> find(const std::vector<std::string>& words) {
  std::vector<const Scheme*> found;
  for (const Scheme& s : schemes()) {
    const std::string text =
        lowered(join({s.name, s.class_name, s.summary, s.source, family(s).name}, "\n"));
    const auto has = [&](const std::string& word) { return text.find(lowered(word)) != text.npos; };
    if (std::ranges::all_of(words, has)) found.push_back(&s);
  }
  if (!found.empty()) return found;
  std::vector<std::string> quoted;
  for (const std::string& word : words) quoted.push_back(io::printable(word));
  throw_error(ErrorKind::kValue,
              "WORD: expected words of the name, class, summary, paper or family ",
              "of a scheme, no scheme has ", join(quoted, " and "),
              ": relpos list alone names all ", schemes().size());
}

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

Json scheme_json(const Scheme& scheme) {
  Json options = Json::array();
  for (const OptionSpec& spec : scheme.options) options.push_back(option_json(spec));
  return {{"name", scheme.name},           {"class", scheme.class_name},
          {"family", family(scheme).name}, {"summary", scheme.summary},
          {"source", scheme.source},       {"options", options}};
}

// Name, class and summary in columns. The summary is broken where a terminal ends, and stands below
// the name in a narrow one; elsewhere a scheme is one line. A search shows the papers, too.
std::string schemes_text(const std::vector<const Scheme*>& shown, bool papers, const Style& style) {
  constexpr size_t kNarrowest = 24;  // of a summary beside the name
  size_t name_width = 0, class_width = 0;
  for (const Scheme& scheme : schemes()) {
    name_width = std::max(name_width, scheme.name.size() + 2);
    class_width = std::max(class_width, scheme.class_name.size() + 2);
  }
  const size_t width = style.terminal ? static_cast<size_t>(style.width) : std::string::npos;
  const bool beside = width >= name_width + class_width + kNarrowest;
  const std::string margin(beside ? name_width + class_width : 4, ' ');
  std::string text;
  for (const Scheme* scheme : shown) {
    std::vector<std::string> lines = wrapped(scheme->summary, width - margin.size());
    if (papers)
      std::ranges::move(wrapped("[" + scheme->source + "]", width - margin.size()),
                        std::back_inserter(lines));
    text += text_of("%-*s", static_cast<int>(name_width), scheme->name.c_str());
    text += text_of("%-*s", beside ? static_cast<int>(class_width) : 0, scheme->class_name.c_str());
    text += (beside ? "" : "\n" + margin) + lines.front();
    for (size_t n = 1; n < lines.size(); ++n) text += "\n" + margin + lines[n];
    text += '\n';
  }
  return text;
}

int list(const ListArguments& arguments) {
  const std::vector<const Scheme*> found = find(arguments.words);
  if (arguments.json) {
    Json list = Json::array();
    for (const Scheme* scheme : found) list.push_back(scheme_json(*scheme));
    print_json({{"schemes", list}});
    return kOk;
  }
  const Style style = stdout_style("never");
  std::string text;
  for (const Family& one : families()) {
    std::vector<const Scheme*> members;
    std::ranges::copy_if(found, std::back_inserter(members),
                         [&](const Scheme* scheme) { return family(*scheme).name == one.name; });
    if (members.empty()) continue;
    const std::string heading = one.name + ": " + one.summary;
    if (!text.empty()) text += '\n';
    text += join(wrapped(heading, static_cast<size_t>(style.width)), "\n") + "\n\n";
    text += schemes_text(members, !arguments.words.empty(), style);
  }
  print(text);
  return kOk;
}

}  // namespace

void add_list(CLI::App& tool, Run& run) {
  CLI::App* app =
      tool.add_subcommand("list", "List every scheme by family, or those that have certain words");
  app->footer(
      "  relpos list\n  relpos list window           name, class, summary, paper or family has it\n"
      "  relpos list rotation 2023    has both\n  relpos list --json\n"
      "  relpos show t5 --help        the options of one");
  ListArguments& a = add_arguments(*app, run, list);
  app->add_option("WORD", a.words,
                  "words, in capitals or not, that a scheme must all have [none: every scheme]")
      ->type_name("");
  app->add_flag("--json", a.json, "print schemes, sources and options as JSON");
}

}  // namespace relpos::cli
