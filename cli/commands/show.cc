// relpos show SCHEME: the matrices of one scheme on a small grid.
#include <algorithm>
#include <deque>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands/commands.h"
#include "cli/commands/own.h"
#include "cli/common.h"
#include "cli/options/grid.h"
#include "cli/options/help.h"
#include "cli/options/parameters.h"
#include "cli/options/scheme_options.h"
#include "cli/print/matrices.h"
#include "cli/print/matrix_print.h"
#include "relpos/dense.h"
#include "relpos/error.h"
#include "relpos/family.h"

namespace relpos::cli {
namespace {

using Json = nlohmann::ordered_json;

struct ShowArguments {
  const Scheme* scheme = nullptr;
  std::optional<SchemeOptions> options;
  GridOptions grid;
  std::optional<int64_t> head;
  std::string own, params, what, color = "auto";  // own: module:Class, where it is no scheme
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
  const std::vector<std::string> kinds = term_kinds(part);
  const auto has = [&](const char* kind) { return std::ranges::find(kinds, kind) != kinds.end(); };
  const bool has_bias = has("distance bias") || has("key bias");
  const bool key_rows = has("row table"), value_rows = has("value table");
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

void print_matrices(const ShowArguments& arguments, const std::string& name, const Json& options,
                    const Grid& grid, const std::vector<Step>& matrices) {
  if (arguments.json) {
    Json list = Json::array();
    for (const Step& matrix : matrices) list.push_back(matrix_json(matrix));
    print_json({{"scheme", name},
                {"options", options},
                {"query", grid.queries},
                {"key", grid.keys},
                {"q_offset", grid.q_offset},
                {"matrices", list}});
    return;
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
}

int show(const ShowArguments& arguments) {
  const Scheme& scheme = *arguments.scheme;
  const auto [queries, keys] = arguments.grid.lengths(0);
  GivenOptions given = arguments.options->given();
  if (arguments.causal) make_one_sided(scheme, given);
  fill_required(scheme, std::max<int64_t>({queries, keys, 1}), given);

  Position position;
  position.parts.push_back(make_part(scheme, given));
  const Part& part = position.parts.front();
  const Grid grid = make_grid(queries, keys, arguments.grid.q_offset);
  const Parameters parameters(position, arguments.params, arguments.seed, DType::kFloat32,
                              {.queries = queries, .keys = keys});
  if (!parameters.missing_text().empty()) note("relpos show: " + parameters.missing_text());

  print_matrices(arguments, scheme.name, json_options(part.options()), grid,
                 matrices_of(arguments, part, grid));
  return kOk;
}

int show_own(const ShowArguments& arguments) {
  const auto [queries, keys] = arguments.grid.lengths(0);
  check_value(is_own(arguments.own), "POSITION: expected module:Class, got ", arguments.own);
  OwnRequest request;
  request.who = "relpos show";
  request.sides = {{arguments.own, arguments.params}};
  request.what = arguments.what;
  request.grids = {make_grid(queries, keys, arguments.grid.q_offset)};
  request.seed = arguments.seed;
  request.length = std::max<int64_t>({queries, keys, 1});
  const OwnReply reply = ask_own(request);
  const bool by_head = reply.what == "bias" || reply.what == "rows";
  check_value(by_head || !arguments.head, "--head: --what ", reply.what,
              " is the same for all heads, or shows all");
  std::vector<Step> matrices;
  for (const Step& found : reply.sides.front().grids.front()) {
    if (by_head) {
      append_heads(found, reply.what == "bias" ? 2 : 3, arguments.head, matrices);
    } else {
      matrices.push_back(found);
    }
  }
  print_matrices(arguments, arguments.own, reply.sides.front().options, request.grids.front(),
                 matrices);
  return kOk;
}

// The options that all schemes have.
void add_common(CLI::App& app, ShowArguments& a) {
  a.grid.add_to(app);
  add_choice(
      app, "--what", a.what, {"distance", "index", "bias", "rows", "steps"},
      "distance (key - query), index (table row of each pair), bias, rows, or steps (all matrices "
      "between positions and scores) [bias where there is one, else index]");
  add_number(app, "--head", a.head, "only this head [all]");
  add_number(app, "--seed", a.seed, "random seed of the parameters [0]");
  add_color(app, a.color);
  app.add_flag("--json", a.json, "print the matrices as JSON");
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
  ShowArguments& a = add_arguments(*app, run, show);
  a.scheme = &scheme;
  a.options.emplace(*app, scheme);
  add_common(*app, a);
  app->add_flag("--causal", a.causal, "the scheme's form for the past only");
  app->add_option("--params", a.params, "parameters from a .safetensors or .npy file [random]");
}

void add_own(CLI::App& parent, Run& run) {
  CLI::App* app = parent.add_subcommand(kShowOwn, "A relpos.Position in Python, as module:Class");
  app->footer(
      "  relpos show mymodule:KERPLE\n"
      "  relpos show 'mymodule:KERPLE(heads=8)' --query 4 --what steps");
  ShowArguments& a = add_arguments(*app, run, show_own);
  app->add_option("POSITION", a.own, "module:Class or module:Class(name=value, ...)")
      ->required()
      ->type_name("");
  add_common(*app, a);
  app->add_option("--params", a.params, "its state dict, a .safetensors file or torch's [new]");
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
      "  relpos show mymodule:KERPLE  a relpos.Position in Python\n"
      "  relpos show rope --help      the options of one scheme\n\n"
      "Required sizes that are not given: heads 4, dims 8, any other the longer of query and key.");
  app->require_subcommand(1);
  for (const Scheme& scheme : schemes()) add_scheme(*app, run, scheme);
  add_own(*app, run);
}

}  // namespace relpos::cli
