#include "cli/commands/own.h"

#include <limits>
#include <utility>

#include "cli/machine/python.h"
#include "cli/options/scheme_options.h"

namespace relpos::cli {
namespace {

using Json = nlohmann::ordered_json;

double number_of(const Json& value) {
  if (value.is_number()) return value.get<double>();
  const std::string text = value.get<std::string>();
  const double infinity = std::numeric_limits<double>::infinity();
  return text == "inf" ? infinity : text == "-inf" ? -infinity : std::nan("");
}

Step step_of(const Json& matrix) {
  const std::string kind = matrix["kind"];
  Step step{matrix["name"],
            kind == "real"      ? Step::Kind::kReal
            : kind == "integer" ? Step::Kind::kInteger
                                : Step::Kind::kBoolean,
            matrix["shape"].get<std::vector<int64_t>>(),
            {}};
  for (const Json& value : matrix["values"]) step.values.push_back(number_of(value));
  return step;
}

Json sizes_of(int64_t length) {
  Json sizes{{"length", length}};
  for (const auto& [name, value] : required_sizes(length)) {
    if (name == "heads" || name == "head_dim") sizes[name] = std::get<int64_t>(value);
  }
  return sizes;
}

}  // namespace

bool is_own(const std::string& text) {
  int depth = 0;
  char quote = 0;
  for (const char c : text) {
    if (quote != 0) {
      if (c == quote) quote = 0;
    } else if (c == '\'' || c == '"') {
      quote = c;
    } else if (c == '(' || c == '[') {
      ++depth;
    } else if (c == ')' || c == ']') {
      --depth;
    } else if (c == ':' && depth == 0) {
      return true;
    }
  }
  return false;
}

OwnReply ask_own(const OwnRequest& request) {
  Json asked{{"what", request.what},  {"others", request.others},
             {"seed", request.seed},  {"sizes", sizes_of(request.length)},
             {"show", request.show},  {"sides", Json::array()},
             {"grids", Json::array()}};
  for (const OwnRequest::Side& side : request.sides) {
    asked["sides"].push_back({{"position", side.text}, {"params", side.params}});
  }
  for (const Grid& grid : request.grids) {
    asked["grids"].push_back({grid.queries, grid.keys, grid.q_offset});
  }
  const Json reply = ask_python(request.who, asked);
  OwnReply found{reply["what"], {}};
  for (const Json& side : reply["sides"]) {
    OwnReply::Side own{side["options"], {}};
    for (const Json& grid : side["grids"]) {
      std::vector<Step>& matrices = own.grids.emplace_back();
      for (const Json& matrix : grid) matrices.push_back(step_of(matrix));
    }
    found.sides.push_back(std::move(own));
  }
  return found;
}

}  // namespace relpos::cli
