// relpos show SCHEME: the matrices of one scheme on a small grid.
#include <algorithm>
#include <deque>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "binding/bound_part.h"
#include "commands.h"
#include "common.h"
#include "help.h"
#include "matrices.h"
#include "matrix_print.h"
#include "parameters.h"
#include "relpos/dense.h"
#include "relpos/error.h"
#include "scheme_options.h"

namespace relpos::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kDefaultLength = 8;

struct ShowArguments {
  const Scheme* scheme = nullptr;
  std::unique_ptr<SchemeOptions> options;
  std::optional<int64_t> query, key, q_offset, head;
  std::string params, what, color = "auto";
  uint64_t seed = 0;
  bool causal = false, json = false;
};

// Appends a stack by head: the asked one, else all. `matrix_rank` is the rank of one head's matrix.
void append_heads(const Step& stack, size_t matrix_rank, std::optional<int64_t> head,
                  std::vector<Step>& matrices) {
  if (stack.shape.size() <= matrix_rank) {
    check_value(!head, "--head: ", stack.name, " is shared by all heads");
    matrices.push_back(stack);
    return;
  }
  if (head) {
    matrices.push_back(head_of(stack, *head));
    return;
  }
  for (int64_t h = 0; h < stack.shape.front(); ++h) matrices.push_back(head_of(stack, h));
}

// Which matrices there are decides the terms, not the scheme's name.
std::vector<Step> matrices_of(const ShowArguments& arguments, const Part& part, const Grid& grid) {
  const BoundPart bound(part);
  const Terms& terms = bound.terms();
  const bool has_bias = !terms.biases.empty() || !terms.key_biases.empty();
  const bool key_rows = !terms.row_tables.empty(), value_rows = !terms.value_tables.empty();
  const std::string what = !arguments.what.empty() ? arguments.what : has_bias ? "bias" : "index";
  const std::string hint = ": try --what index or --what steps";
  std::vector<Step> matrices;
  if (what == "steps") {
    check_size({grid.queries, grid.keys});
    check_value(!arguments.head, "--head: --what steps shows all heads");
    return steps(part, grid);
  }
  if (what == "bias") {
    check_value(has_bias, "--what bias: ", part.scheme().name, " adds no bias", hint);
    append_heads(dense_matrix("bias", part, grid, "key"), 2, arguments.head, matrices);
    return matrices;
  }
  if (what == "rows") {
    check_value(key_rows || value_rows, "--what rows: ", part.scheme().name, " has no rows", hint);
    if (key_rows)
      append_heads(dense_matrix("key rows", part, grid, "key"), 3, arguments.head, matrices);
    if (value_rows) {
      append_heads(dense_matrix("value rows", part, grid, "value"), 3, arguments.head, matrices);
    }
    return matrices;
  }
  check_value(!arguments.head, "--head: --what ", what, " is the same for all heads");
  return {what == "distance" ? distance_matrix(grid) : index_matrix(part, grid)};
}

int show(const ShowArguments& arguments) {
  const Scheme& scheme = *arguments.scheme;
  const int64_t queries = arguments.query.value_or(arguments.key.value_or(kDefaultLength));
  const int64_t keys = arguments.key.value_or(queries);
  check_value(queries >= 0, "--query: expected at least 0, got ", queries);
  check_value(keys >= 0, "--key: expected at least 0, got ", keys);
  GivenOptions given = arguments.options->given();
  if (arguments.causal) make_one_sided(scheme, given);
  fill_required(scheme, std::max<int64_t>({queries, keys, 1}), given);

  Position position;
  position.parts.push_back(make_part(scheme, given));
  const Part& part = position.parts.front();
  const Grid grid = make_grid(queries, keys, arguments.q_offset);
  const Parameters parameters(position, arguments.params, arguments.seed, DType::kFloat32,
                              {.queries = queries, .keys = keys});
  if (!parameters.missing_text().empty()) note("relpos show: " + parameters.missing_text());

  const std::vector<Step> matrices = matrices_of(arguments, part, grid);
  if (arguments.json) {
    Json list = Json::array();
    for (const Step& matrix : matrices) list.push_back(matrix_json(matrix));
    print_json({{"scheme", scheme.name},
                {"options", json_options(part.options())},
                {"query", grid.queries},
                {"key", grid.keys},
                {"q_offset", grid.q_offset},
                {"matrices", list}});
    return kOk;
  }
  const Style style = stdout_style(arguments.color);
  std::string text;
  for (const Step& matrix : matrices) {
    if (matrices.size() > 1) {
      text += (text.empty() ? "" : "\n") + matrix.name + " " + shape_text(matrix.shape) + "\n";
    }
    text += matrix_text(matrix, style);
  }
  print(text);
  return kOk;
}

void add_scheme(CLI::App& parent, Run& run, const Scheme& scheme) {
  CLI::App* app = parent.add_subcommand(scheme.name, scheme.headline());
  std::string call = "  relpos show " + scheme.name;
  for (const OptionSpec& spec : scheme.options) {
    if (spec.required && !spec.choices.empty()) {
      call += " " + option_flag(spec.name) + " " + spec.choices.front();
    }
  }
  app->footer(call + "\n" + call + " --query 10 --key 15 --q-offset 5 --what index\n" + call +
              " --query 6 --what steps");
  auto arguments = std::make_shared<ShowArguments>();
  arguments->scheme = &scheme;
  arguments->options = std::make_unique<SchemeOptions>(*app, scheme);
  ShowArguments& a = *arguments;
  add_number(*app, "--query", a.query, "number of queries [--key, else 8]");
  add_number(*app, "--key", a.key, "number of keys [--query]");
  add_number(*app, "--q-offset", a.q_offset,
             "position of query 0; key 0 is at 0. Required where the lengths differ");
  add_choice(
      *app, "--what", a.what, {"distance", "index", "bias", "rows", "steps"},
      "distance (key - query), index (table row of each pair), bias, rows, or steps (all matrices "
      "between positions and scores) [bias where there is one, else index]");
  add_number(*app, "--head", a.head, "only this head [all]");
  app->add_flag("--causal", a.causal, "the scheme's form for the past only");
  app->add_option("--params", a.params, "parameters from a .safetensors or .npy file [random]");
  add_number(*app, "--seed", a.seed, "random seed of the parameters [0]");
  add_choice(*app, "--color", a.color, {"auto", "always", "never"},
             "colour the numbers as a heat map [auto: on a terminal]");
  app->add_flag("--json", a.json, "print the matrices as JSON");
  app->callback([&run, arguments] { run = [arguments] { return show(*arguments); }; });
}

}  // namespace

void add_show(CLI::App& tool, Run& run) {
  CLI::App* app = tool.add_subcommand("show", "Print the matrices of one scheme");
  app->footer(
      "  relpos show t5 --heads 4 --query 14 --key 14 --buckets 6 --max-distance 20 --causal "
      "--what "
      "index\n"
      "  relpos show alibi --heads 8 --query 4 --key 4\n"
      "  relpos show shaw --max-distance 7 --query 12 --key 12 --distance query-key --what steps\n"
      "  relpos show t5 --params t5.safetensors --heads 8 --head 0\n"
      "  relpos show rope --help      the options of one scheme\n\n"
      "Required sizes that are not given: heads 4, dims 8, any other the longer of query and key.");
  app->require_subcommand(1);
  for (const Scheme& scheme : schemes()) add_scheme(*app, run, scheme);
}

}  // namespace relpos::cli
