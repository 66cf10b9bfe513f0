// relpos check SCHEME: which convention tensors of a file follow.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/nearest.h"
#include "cli/commands/commands.h"
#include "cli/common.h"
#include "cli/files/files.h"
#include "cli/options/scheme_options.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "relpos/conventions.h"
#include "relpos/position.h"

namespace relpos::cli {
namespace {

using Json = nlohmann::ordered_json;
using Outcome = Comparison::Outcome;

constexpr size_t kMostDiffering = 6;     // printed as text; JSON has all
constexpr size_t kMostListNumbers = 16;  // of one option, as text

struct CheckArguments {
  const Scheme* scheme = nullptr;
  const Conventions* known = nullptr;
  std::optional<SchemeOptions> options;
  std::string file, tensor;
  bool json = false;
};

struct Named {
  std::string name;
  Tensor tensor;
};

std::vector<Named> tensors_of(const CheckArguments& arguments) {
  const std::string& path = arguments.file;
  if (!path.ends_with(".safetensors")) {
    check_value(arguments.tensor.empty(), "--tensor: ", path, " has no names: leave --tensor out");
    return {{"", read_tensor(path)}};
  }
  const io::SafetensorsFile file(path);
  std::vector<Named> tensors;
  std::vector<std::string> names;
  for (const auto& entry : file.entries()) {
    names.push_back(entry.name);
    const bool wanted = arguments.tensor.empty() ? file.entries().size() == 1 ||
                                                       is_held_as(*arguments.scheme, entry.name)
                                                 : entry.name == arguments.tensor;
    if (wanted) tensors.push_back({entry.name, file.read(entry)});
  }
  if (tensors.empty() && !arguments.tensor.empty()) {
    const std::string near = nearest_name(arguments.tensor, names);
    throw_error(ErrorKind::kValue, path, ": none of its ", names.size(), " tensors is named ",
                io::printable(arguments.tensor),
                near.empty() ? "" : "; did you mean " + io::printable(near) + "?");
  }
  check_value(!tensors.empty(), path, ": none of its ", names.size(), " tensors has a name of ",
              arguments.scheme->name, "'s (", join(arguments.known->names), "): give --tensor");
  return tensors;
}

std::string value_text(const OptionValue& value) {
  const auto* list = std::get_if<std::vector<double>>(&value);
  if (list == nullptr || list->size() <= kMostListNumbers) return option_text(value);
  return "[" + std::to_string(list->size()) + " numbers]";
}

std::string meaning(const Scheme& scheme, const Comparison& comparison) {
  if (comparison.options.empty()) return "";
  std::vector<std::string> words;
  for (const auto& [name, value] : comparison.options) {
    words.push_back(name + "=" + value_text(value));
  }
  return "= " + scheme.name + "(" + join(words) + ")";
}

std::string comparison_text(const Scheme& scheme, const Comparison& comparison) {
  std::string text = "  " + comparison.convention + "\n";
  const auto line = [&](const std::string& words) {
    if (!words.empty()) text += "    " + words + "\n";
  };
  if (comparison.outcome == Outcome::kDiffers) {
    line("first difference at " + shape_text(comparison.index) + ": " +
         option_text(comparison.found) + " instead of " + option_text(comparison.expected));
    return text;
  }
  line(meaning(scheme, comparison));
  if (comparison.outcome == Outcome::kFits) {
    line(std::to_string(comparison.compared) + " numbers compared, largest difference " +
         option_text(comparison.largest));
  }
  line(comparison.note);
  return text;
}

const char* headline(Verdict verdict) {
  switch (verdict) {
    case Verdict::kFits:
      return "fits one convention:";
    case Verdict::kAmbiguous:
      return "fits several conventions, between which its values do not decide:";
    case Verdict::kUndecided:
      return "undecided: learned values do not show their convention; the shape allows";
    case Verdict::kNone:
      break;
  }
  return "fits no convention of the scheme";
}

std::string report_text(const CheckArguments& arguments, const Named& named,
                        const CheckReport& report) {
  const Scheme& scheme = *arguments.scheme;
  std::string text = (named.name.empty() ? "" : io::printable(named.name) + " ") +
                     named.tensor.view().shape_text() + " " +
                     dtype_name(named.tensor.view().dtype) + ": " + headline(report.verdict) + "\n";
  const Outcome reported =
      report.comparisons.empty() ? Outcome::kDiffers : report.comparisons.front().outcome;
  std::vector<const Comparison*> others;
  for (const Comparison& comparison : report.comparisons) {
    if (comparison.outcome == Outcome::kDiffers) {
      others.push_back(&comparison);
    } else if (comparison.outcome == reported) {
      text += comparison_text(scheme, comparison);
    }
  }
  if (report.verdict == Verdict::kNone) {
    if (others.empty()) {
      return text + "  nothing to compare with for this shape, dtype and options; known are " +
             arguments.known->shapes + "\n";
    }
    text += "compared with, closest first:\n";
    for (size_t n = 0; n < std::min(others.size(), kMostDiffering); ++n) {
      text += comparison_text(scheme, *others[n]);
    }
    if (others.size() > kMostDiffering) {
      text += "  and " + std::to_string(others.size() - kMostDiffering) + " more (--json)\n";
    }
  } else if (!others.empty()) {
    text += "  and not " + std::to_string(others.size()) + " others (--json)\n";
  }
  return text;
}

const char* outcome_name(Outcome outcome) {
  return outcome == Outcome::kFits ? "fits" : outcome == Outcome::kDiffers ? "differs" : "shape";
}

Json report_json(const Named& named, const CheckReport& report) {
  Json comparisons = Json::array();
  for (const Comparison& comparison : report.comparisons) {
    Json options = Json::object();
    for (const auto& [name, value] : comparison.options) options[name] = json_option(value);
    Json entry = {{"outcome", outcome_name(comparison.outcome)},
                  {"convention", comparison.convention},
                  {"options", options},
                  {"note", comparison.note},
                  {"compared", comparison.compared}};
    if (comparison.outcome == Outcome::kFits) {
      entry["largest_difference"] = json_number(comparison.largest);
    }
    if (comparison.outcome == Outcome::kDiffers) {
      entry["index"] = comparison.index;
      entry["expected"] = json_number(comparison.expected);
      entry["found"] = json_number(comparison.found);
    }
    comparisons.push_back(std::move(entry));
  }
  return {{"tensor", named.name},
          {"shape", named.tensor.view().dims()},
          {"dtype", dtype_name(named.tensor.view().dtype)},
          {"verdict", verdict_name(report.verdict)},
          {"comparisons", comparisons}};
}

int run_check(const CheckArguments& arguments) {
  const Scheme& scheme = *arguments.scheme;
  const GivenOptions given = arguments.options->given();
  std::string text;
  Json list = Json::array();
  bool known = true;
  for (const Named& named : tensors_of(arguments)) {
    const CheckReport report = check(scheme, given, named.tensor.view(), named.name);
    known = known && report.verdict != Verdict::kNone;
    if (arguments.json) {
      list.push_back(report_json(named, report));
    } else {
      text += report_text(arguments, named, report);
    }
  }
  if (arguments.json) {
    print_json({{"scheme", scheme.name}, {"file", arguments.file}, {"tensors", list}});
  } else {
    print(text);
  }
  return known ? kOk : kFailedCheck;
}

void add_scheme(CLI::App& parent, Run& run, const Scheme& scheme, const Conventions& known) {
  CLI::App* app = parent.add_subcommand(scheme.name, scheme.summary);
  app->footer("  relpos check " + scheme.name + " tensor.npy\n  relpos check " + scheme.name +
              " model.safetensors --tensor " + known.names.front() + " --json\n\nKnown: " +
              known.shapes + ".\nIn a checkpoint, names that end in " + join(known.names) +
              ".\nWith options given, only forms with these options are compared.");
  CheckArguments& a = add_arguments(*app, run, run_check);
  a.scheme = &scheme;
  a.known = &known;
  a.options.emplace(*app, scheme);
  app->add_option("file", a.file, "a .npy or .safetensors file")->required();
  app->add_option("--tensor", a.tensor,
                  "name of the tensor in a .safetensors file [the only one, else all with names of "
                  "the scheme]");
  app->add_flag("--json", a.json, "print every comparison as JSON");
}

}  // namespace

void add_check(CLI::App& tool, Run& run) {
  CLI::App* app = tool.add_subcommand(
      "check", "Say which convention of a scheme a tensor or checkpoint follows");
  app->footer(
      "  relpos check alibi slopes.npy\n"
      "  relpos check rope cos_cached.npy\n"
      "  relpos check t5 model.safetensors\n"
      "  relpos check shaw tables.safetensors --tensor embeddings_table --max-distance 7\n\n"
      "Exit codes: 0 a convention fits (or the shape of learned values does), 1 none does.");
  app->require_subcommand(1);
  for (const Scheme& scheme : schemes()) {
    if (const Conventions* known = conventions_of(scheme)) add_scheme(*app, run, scheme, *known);
  }
}

}  // namespace relpos::cli
