// relpos list: the registry, by family, or what of it has certain words.
#include <algorithm>
#include <cctype>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "commands.h"
#include "common.h"
#include "io/file.h"
#include "matrix_print.h"
#include "relpos/error.h"
#include "relpos/family.h"
#include "relpos/position.h"
#include "scheme_options.h"

namespace relpos::cli {
namespace {

using Json = nlohmann::ordered_json;

struct ListArguments {
  std::vector<std::string> words;
  bool json = false;
};

struct Entry {
  const Scheme* scheme;
  std::string family;
};

std::string lowered(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// The schemes that have every one of the words.
std::vector<Entry> find(const std::vector<std::string>& words) {
  std::vector<Entry> found;
  for (const Scheme& scheme : schemes()) {
    const Entry entry{&scheme, family(scheme).name};
    const std::string text = lowered(
        join({scheme.name, scheme.class_name, scheme.summary, scheme.source, entry.family}, "\n"));
    const auto has = [&](const std::string& word) { return text.find(lowered(word)) != text.npos; };
    if (std::ranges::all_of(words, has)) found.push_back(entry);
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

Json entry_json(const Entry& entry) {
  const Scheme& scheme = *entry.scheme;
  Json options = Json::array();
  for (const OptionSpec& spec : scheme.options) options.push_back(option_json(spec));
  return {{"name", scheme.name},       {"class", scheme.class_name}, {"family", entry.family},
          {"summary", scheme.summary}, {"source", scheme.source},    {"options", options}};
}

std::string padded(const std::string& text, size_t width) {
  return text + std::string(width - std::min(width, text.size()), ' ');
}

// Name, class and summary in columns. The summary is broken where a terminal ends, and stands below
// the name in a narrow one; elsewhere a scheme is one line. A search shows the papers, too.
std::string entries_text(const std::vector<Entry>& entries, bool papers, const Style& style) {
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
  for (const Entry& entry : entries) {
    std::vector<std::string> lines = wrapped(entry.scheme->summary, width - margin.size());
    if (papers)
      std::ranges::move(wrapped("[" + entry.scheme->source + "]", width - margin.size()),
                        std::back_inserter(lines));
    text += padded(entry.scheme->name, name_width);
    text += beside ? padded(entry.scheme->class_name, class_width) + lines.front()
                   : entry.scheme->class_name + "\n" + margin + lines.front();
    for (size_t n = 1; n < lines.size(); ++n) text += "\n" + margin + lines[n];
    text += '\n';
  }
  return text;
}

int list(const ListArguments& arguments) {
  const std::vector<Entry> found = find(arguments.words);
  if (arguments.json) {
    Json list = Json::array();
    for (const Entry& entry : found) list.push_back(entry_json(entry));
    print_json({{"schemes", list}});
    return kOk;
  }
  const Style style = stdout_style("never");
  std::string text;
  for (const Family& one : families()) {
    std::vector<Entry> members;
    std::ranges::copy_if(found, std::back_inserter(members),
                         [&](const Entry& entry) { return entry.family == one.name; });
    if (members.empty()) continue;
    const std::string heading = one.name + ": " + one.summary;
    if (!text.empty()) text += '\n';
    text += join(wrapped(heading, static_cast<size_t>(style.width)), "\n") + "\n\n";
    text += entries_text(members, !arguments.words.empty(), style);
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
  auto arguments = std::make_shared<ListArguments>();
  app->add_option("WORD", arguments->words,
                  "words, in capitals or not, that a scheme must all have [none: every scheme]")
      ->type_name("");
  app->add_flag("--json", arguments->json, "print schemes, sources and options as JSON");
  app->callback([&run, arguments] { run = [arguments] { return list(*arguments); }; });
}

}  // namespace relpos::cli
