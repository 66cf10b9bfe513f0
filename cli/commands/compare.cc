// relpos compare A B: how two positions differ, by pairs of tokens and over the distance.
#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
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
#include "cli/print/chart.h"
#include "cli/print/difference.h"
#include "cli/print/matrices.h"
#include "cli/print/matrix_print.h"
#include "relpos/attention.h"
#include "relpos/error.h"
#include "relpos/family.h"

namespace relpos::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kDefaultReach = 32;
constexpr int64_t kMostReach = int64_t{1} << 20;
constexpr size_t kMostLines = 16;  // of the table of heads
constexpr size_t kMostRuns = 6;

struct CompareArguments {
  std::string a, b, params_a, params_b, what, color = "auto";
  GridOptions grid;
  std::optional<int64_t> head;
  int64_t reach = kDefaultReach;
  uint64_t seed = 0;
  bool json = false;
};

// One of the two positions; its parameters are drawn for each grid.
struct Operand {
  std::string label, text, params;
  Position position;  // none of one's own, whose stacks are given for each grid
  uint64_t seed = 0;
  bool own = false;
  std::vector<Step> given;

  std::string described() const { return own ? text : position_text(position); }
};

bool is_bias(const Part& part) { return family(part).name == "bias"; }

bool is_table(const Position& position) {
  return position.parts.size() == 1 && family(position.parts.front()).name == "rows";
}

// The default is what `show` draws if both have it, else the score, which rotations have, too.
std::string default_what(const Position& a, const Position& b) {
  if (std::ranges::all_of(a.parts, is_bias) && std::ranges::all_of(b.parts, is_bias)) return "bias";
  if (is_table(a) && is_table(b)) return "index";
  return "score";
}

// An option that several parts may have; they agree, or the call refuses them.
int64_t size_of(const Position& position, const char* option, int64_t fallback) {
  for (const Part& part : position.parts) {
    if (part.options().has(option)) return part.options().integer(option);
  }
  return fallback;
}

Step bias_of(const Operand& side, const Position& position, const Grid& grid) {
  Step sum;
  for (const Part& part : position.parts) {
    check_value(is_bias(part), "--what bias: ", part.scheme().name, " of ", side.label,
                " is not a bias: try --what score");
    const Step own = dense_matrix("bias", part, grid, "key");
    if (sum.shape.empty()) {
      sum = own;
      continue;
    }
    const int64_t heads = std::max(sum.shape[0], own.shape[0]);
    const Step more = with_heads(own, heads);
    sum = with_heads(std::move(sum), heads);
    for (size_t n = 0; n < sum.values.size(); ++n) sum.values[n] += more.values[n];
  }
  return sum;
}

Step index_of(const Operand& side, const Position& position, const Grid& grid) {
  check_value(position.parts.size() == 1, "--what index: ", side.label,
              " is a sum, expected one scheme: try --what score");
  Step step = index_matrix(position.parts.front(), grid);
  step.shape.insert(step.shape.begin(), 1);
  return step;
}

// Scores of queries and keys of ones, divided by their size: of a rotation the mean cosine.
Step score_of(const Position& position, const Grid& grid) {
  constexpr int64_t kAnyDim = 8;
  const int64_t heads = size_of(position, "heads", 1);
  const int64_t dim = size_of(position, "head_dim", kAnyDim);
  check_size({heads, grid.queries, grid.keys});
  check_size({heads, std::max(grid.queries, grid.keys), dim});
  const auto ones = [&](int64_t length) {
    Tensor tensor(DType::kFloat64, {1, heads, length, dim});
    for (int64_t n = 0; n < tensor.view().numel(); ++n) tensor.view().store(n, 1.0);
    return tensor;
  };
  const Tensor query = ones(grid.queries), key = ones(grid.keys);
  const Tensor out(DType::kFloat64, {1, heads, grid.queries, grid.keys});
  Options options;
  options.scale = 1.0 / static_cast<double>(dim);
  options.q_offset = Offset(grid.q_offset);
  scores(query.view(), key.view(), position, options, out.view());
  Step step = as_step("score", Step::Kind::kReal, out);
  step.shape.erase(step.shape.begin());
  return step;
}

// [heads, queries, keys] of a grid, which is that of this number among `given`.
Step values_of(const Operand& side, const std::string& what, const Grid& grid, size_t number) {
  if (side.own) {
    Step step = side.given[number];
    step.name = side.label;
    return step;
  }
  Position position = side.position;
  const int64_t heads = size_of(position, "heads", 1);
  const Parameters parameters(position, side.params, side.seed, DType::kFloat32,
                              {.heads = heads, .queries = grid.queries, .keys = grid.keys});
  Step step = what == "bias"    ? bias_of(side, position, grid)
              : what == "index" ? index_of(side, position, grid)
                                : score_of(position, grid);
  step.name = side.label;
  return step;
}

struct BothSides {
  Step a, b;
};

BothSides values_of(const std::array<Operand, 2>& sides, const std::string& what, const Grid& grid,
                    size_t number) {
  BothSides both{values_of(sides[0], what, grid, number), values_of(sides[1], what, grid, number)};
  const int64_t heads = std::max(both.a.shape[0], both.b.shape[0]);
  both.a = with_heads(std::move(both.a), heads);
  both.b = with_heads(std::move(both.b), heads);
  return both;
}

std::string what_text(const std::string& what) {
  if (what == "bias") return "bias";
  if (what == "index") return "row of the table for each pair (-1: none)";
  return "score of queries and keys of ones, divided by the size of a head";
}

// The table of heads, as far as it is short.
std::string heads_text(const std::vector<HeadDifference>& heads) {
  std::string text = "head  equal pairs        largest |A - B|  at query, key\n";
  for (size_t h = 0; h < std::min(heads.size(), kMostLines); ++h) {
    const HeadDifference& head = heads[h];
    const std::string equal = std::to_string(head.equal) + " of " + std::to_string(head.pairs);
    text += text_of("%4zu  %-17s  %15.4g", h, equal.c_str(), head.largest);
    if (head.largest > 0) {
      text += "  " + std::to_string(head.query) + ", " + std::to_string(head.key);
    }
    text += '\n';
  }
  if (heads.size() > kMostLines) {
    text += "(" + std::to_string(heads.size() - kMostLines) + " more heads: --json has all)\n";
  }
  return text;
}

std::string runs_text(const std::vector<std::pair<int64_t, int64_t>>& runs, int64_t first,
                      int64_t count) {
  if (runs.empty()) return "A and B agree at none of these distances.";
  if (runs.front().second - runs.front().first + 1 == count) {
    return "A and B agree to rounding at all of these distances.";
  }
  std::vector<std::string> texts;
  for (size_t n = 0; n < std::min(runs.size(), kMostRuns); ++n) {
    const std::string from = std::to_string(first + runs[n].first);
    const std::string to = std::to_string(first + runs[n].second);
    texts.push_back(from == to ? from : from + " to " + to);
  }
  const std::string more = runs.size() > kMostRuns
                               ? " and " + std::to_string(runs.size() - kMostRuns) + " more runs"
                               : "";
  const bool one = runs.size() == 1 && runs.front().first == runs.front().second;
  return std::string("A and B agree to rounding at the distance") + (one ? " " : "s ") +
         join(texts) + more + ".";
}

Json runs_json(const std::vector<std::pair<int64_t, int64_t>>& runs, int64_t first) {
  Json list = Json::array();
  for (const auto& [from, to] : runs) list.push_back({first + from, first + to});
  return list;
}

struct Result {
  std::array<Operand, 2> sides;
  std::string what;
  Grid grid;
  BothSides pairs, curves;  // on the grid, and of one query, `reach` keys to both sides
  int64_t reach = 0;
  std::vector<HeadDifference> heads;
};

Json result_json(const Result& result, const CompareArguments& arguments) {
  Json heads = Json::array();
  for (size_t h = 0; h < result.heads.size(); ++h) {
    const HeadDifference& head = result.heads[h];
    const Step a = head_of(result.curves.a, static_cast<int64_t>(h));
    const Step b = head_of(result.curves.b, static_cast<int64_t>(h));
    heads.push_back(
        {{"head", h},
         {"pairs", head.pairs},
         {"equal_pairs", head.equal},
         {"largest_difference", json_number(head.largest)},
         {"at", {head.query, head.key}},
         {"curve_a", matrix_json(a)["values"][0]},
         {"curve_b", matrix_json(b)["values"][0]},
         {"equal_distances", runs_json(agreeing_runs(a.values, b.values), -result.reach)}});
  }
  return {{"a", result.sides[0].described()},
          {"b", result.sides[1].described()},
          {"what", result.what},
          {"query", result.grid.queries},
          {"key", result.grid.keys},
          {"q_offset", result.grid.q_offset},
          {"seed", arguments.seed},
          {"first_distance", -result.reach},
          {"last_distance", result.reach},
          {"heads", heads},
          {"matrices",
           {matrix_json(result.pairs.a), matrix_json(result.pairs.b),
            matrix_json(difference(result.pairs.a, result.pairs.b))}}};
}

std::string result_text(const Result& result, int64_t head, const Style& style) {
  const auto width = static_cast<size_t>(std::max(style.width, 20));
  const auto paragraph = [&](const std::string& text) { return join(wrapped(text, width), "\n"); };
  std::string text;
  for (const Operand& side : result.sides) {
    text += paragraph(side.label + ": " + side.described()) + "\n";
  }
  const int64_t heads = result.pairs.a.shape[0];
  const std::string of = heads > 1 ? "head " + std::to_string(head) + ", " : "";
  text += paragraph(what_text(result.what) + ", " + std::to_string(result.grid.queries) +
                    " queries, " + std::to_string(result.grid.keys) + " keys") +
          "\n\n" + heads_text(result.heads) + "\n";
  const Step a = head_of(result.pairs.a, head), b = head_of(result.pairs.b, head);
  text += of + "A - B\n" + matrix_text(difference(a, b), style) + "\n";
  const Step curve_a = head_of(result.curves.a, head), curve_b = head_of(result.curves.b, head);
  text += paragraph(of + "over the distance key - query; * where A and B meet") + "\n";
  text += chart_text(-result.reach, curve_a.values, curve_b.values, style.width);
  return text + "\n" +
         paragraph(runs_text(agreeing_runs(curve_a.values, curve_b.values), -result.reach,
                             2 * result.reach + 1)) +
         "\n";
}

// The asked head, else the one that differs most.
int64_t chosen_head(const std::vector<HeadDifference>& heads, std::optional<int64_t> asked) {
  if (asked) {
    check_head(*asked, static_cast<int64_t>(heads.size()));
    return *asked;
  }
  return std::ranges::max_element(heads, {}, &HeadDifference::largest) - heads.begin();
}

void note_drawn(const Operand& side, const Grid& grid) {
  if (side.own) {
    const std::string seed = " (seed " + std::to_string(side.seed) + ")";
    const std::string made = ": parameters as its constructor makes them" + seed;
    if (side.params.empty()) note("relpos compare: " + side.label + made);
    return;
  }
  Position position = side.position;
  const Parameters parameters(position, side.params, side.seed, DType::kFloat32,
                              {.queries = grid.queries, .keys = grid.keys});
  const std::string text =
      side.params.empty() ? parameters.drawn_text(side.seed) : parameters.missing_text();
  if (!text.empty()) note("relpos compare: " + side.label + ": " + text);
}

Operand operand(const std::string& label, const std::string& text, const std::string& params,
                uint64_t seed, const OptionValues& sizes) {
  Operand side{label, text, params, {}, seed, is_own(text), {}};
  if (!side.own) side.position = parse_position(text, sizes);
  check_value(side.own || !side.position.parts.empty(), label,
              ": expected a position, as 'alibi(heads=8)', got an empty text");
  return side;
}

// What is compared; stacks of the sides of one's own are asked for.
std::string what_of(const CompareArguments& arguments, std::array<Operand, 2>& sides,
                    const std::vector<Grid>& grids, int64_t length) {
  OwnRequest request{"relpos compare", {},     arguments.what, {}, grids,
                     arguments.seed,   length, false};
  std::vector<Operand*> own;
  for (Operand& side : sides) {
    if (side.own) {
      own.push_back(&side);
      request.sides.push_back({side.text, side.params});
    } else {
      request.others.push_back(std::ranges::all_of(side.position.parts, is_bias) ? "bias"
                               : is_table(side.position)                         ? "rows"
                                                                                 : "");
    }
  }
  if (own.empty()) {
    return arguments.what.empty() ? default_what(sides[0].position, sides[1].position)
                                  : arguments.what;
  }
  const OwnReply reply = ask_own(request);
  for (size_t n = 0; n < own.size(); ++n) {
    for (const std::vector<Step>& matrices : reply.sides[n].grids) {
      own[n]->given.push_back(matrices.front());
    }
  }
  return reply.what;
}

Result compute(const CompareArguments& arguments) {
  const auto [queries, keys] = arguments.grid.lengths(1);
  check_value(arguments.reach >= 0 && arguments.reach <= kMostReach, "--reach: expected 0 to ",
              kMostReach, ", got ", arguments.reach);
  const int64_t length = std::max({queries, keys, arguments.reach + 1});
  const OptionValues sizes = required_sizes(length);
  Result result;
  result.sides = {operand("A", arguments.a, arguments.params_a, arguments.seed, sizes),
                  operand("B", arguments.b, arguments.params_b, arguments.seed, sizes)};
  result.grid = make_grid(queries, keys, arguments.grid.q_offset);
  result.reach = arguments.reach;
  const Grid curve{1, 2 * arguments.reach + 1, arguments.reach};
  result.what = what_of(arguments, result.sides, {result.grid, curve}, length);
  result.pairs = values_of(result.sides, result.what, result.grid, 0);
  result.curves = values_of(result.sides, result.what, curve, 1);
  result.heads = compare_heads(result.pairs.a, result.pairs.b);
  return result;
}

int compare(const CompareArguments& arguments) {
  const Result result = compute(arguments);
  const int64_t head = chosen_head(result.heads, arguments.head);
  if (arguments.json) {
    print_json(result_json(result, arguments));
    return kOk;
  }
  if (result.what != "index") {
    for (const Operand& side : result.sides) note_drawn(side, result.grid);
  }
  print(result_text(result, head, stdout_style(arguments.color)));
  return kOk;
}

}  // namespace

void add_compare(CLI::App& tool, Run& run) {
  CLI::App* app = tool.add_subcommand("compare", "Show where two positions differ and agree");
  app->footer(
      "  relpos compare 'alibi(heads=8)' 'alibi(heads=8, slopes=geometric)'\n"
      "  relpos compare 'rope(layout=half)' 'rope_linear(layout=half, factor=4)' --reach 100\n"
      "  relpos compare shaw music_transformer --what index\n"
      "  relpos compare t5 't5+alibi' --head 0 --json\n"
      "  relpos compare 'kerple_log(heads=4)' 'mymodule:KERPLE(heads=4)'\n\n"
      "Required sizes that a text leaves out: heads 4, dims 8, any other the longest of --query,\n"
      "--key and --reach + 1. Numbers agree to rounding where they differ by at most 4 half units\n"
      "in the last place of float32.");
  CompareArguments& a = add_arguments(*app, run, compare);
  app->add_option("A", a.a, "a scheme, a scheme with options, module:Class, or a sum")
      ->required()
      ->type_name("");
  app->add_option("B", a.b, "the other")->required()->type_name("");
  add_choice(
      *app, "--what", a.what, {"bias", "score", "index"},
      "bias, score (of queries and keys of ones: what a rotation leaves of equal vectors, and "
      "the biases), or index (table row of each pair) [bias where both are biases, index "
      "where both are tables, else score]");
  a.grid.add_to(*app);
  add_number(*app, "--reach", a.reach, "farthest distance of the curves, to both sides [32]");
  add_number(*app, "--head", a.head, "this head [the one that differs most]");
  app->add_option("--params-a", a.params_a, "parameters of A from a file [random]");
  app->add_option("--params-b", a.params_b, "parameters of B from a file [random]");
  add_number(*app, "--seed", a.seed, "random seed of the parameters of both [0]");
  add_color(*app, a.color);
  app->add_flag("--json", a.json, "print all heads, matrices and curves as JSON");
}

}  // namespace relpos::cli
