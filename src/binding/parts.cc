#include "binding/parts.h"

#include <algorithm>
#include <iterator>

#include "base/parallel.h"
#include "base/zeros.h"
#include "relpos/error.h"
#include "values/views.h"

namespace relpos {
namespace {

template <typename T>
std::vector<T> take(std::vector<T>& all, size_t& from, size_t count) {
  const auto begin = std::make_move_iterator(all.begin() + static_cast<std::ptrdiff_t>(from));
  from += count;
  return {begin, begin + static_cast<std::ptrdiff_t>(count)};
}

template <typename F>
bool any_recipe(const Position& position, F holds) {
  return std::any_of(position.parts.begin(), position.parts.end(),
                     [&](const Part& part) { return part.recipe && holds(*part.recipe); });
}

}  // namespace

bool places(const Position& position) {
  return any_recipe(position, [](const Recipe& recipe) { return recipe.place != nullptr; });
}

bool reads_distances(const Position& position) {
  return any_recipe(position, [](const Recipe& recipe) { return recipe.reads_distances; });
}

bool reads_length(const Position& position) {
  return any_recipe(position, [](const Recipe& recipe) { return recipe.reads_length; });
}

bool has_reach(const Position& position) {
  return any_recipe(position, [](const Recipe& recipe) { return recipe.has_reach; });
}

void append_places(const Position& position, Side side, int64_t first, int64_t count,
                   const char* name, std::vector<int64_t>& positions) {
  const Part* placing = nullptr;
  const size_t begin = positions.size();
  CancelTicks tick;
  for (const Part& part : position.parts) {
    if (!part.recipe || !part.recipe->place) continue;
    for (int64_t n = 0; n < count; ++n) {
      tick();
      const auto& place = side == Side::kKey && part.recipe->place_key ? part.recipe->place_key
                                                                       : part.recipe->place;
      const int64_t at = place(first + n);
      check_position(at, name);
      if (placing == nullptr) {
        positions.push_back(at);
        continue;
      }
      check_value(positions[begin + static_cast<size_t>(n)] == at,
                  "position: ", placing->scheme().name, " and ", part.scheme().name,
                  " place token ", first + n, " at ", positions[begin + static_cast<size_t>(n)],
                  " and at ", at, "; give q_positions and k_positions that serve both");
    }
    placing = &part;
  }
}

bool place_tokens(const Position& position, Side side, std::vector<int64_t>& tokens) {
  if (!places(position)) return false;
  std::vector<int64_t> placed;
  for (const int64_t token : tokens) append_places(position, side, token, 1, "position", placed);
  tokens = std::move(placed);
  return true;
}

void check_parameters(const Part& part, const CallSizes& sizes) {
  const std::vector<ParameterSpec>& specs = part.specs();
  const std::string& who = part.scheme().name;
  if (part.parameters.size() < specs.size() && specs[part.parameters.size()].input) {
    const ParameterSpec& missing = specs[part.parameters.size()];
    throw_error(ErrorKind::kValue, who, ": ", missing.name,
                ": missing; it is an input of each call (", missing.doc, "), given by position(",
                missing.name, ") in Python and by --input ", missing.name,
                "=FILE on the command line");
  }
  check_value(specs.size() == part.parameters.size(), who, ": expected ", specs.size(),
              " parameters, got ", part.parameters.size());
  const int64_t heads = sizes.own_heads == 0 ? sizes.heads : sizes.own_heads;
  const InputSizes of_call{sizes.batch, heads, sizes.queries, sizes.keys, sizes.head_dim};
  for (size_t n = 0; n < specs.size(); ++n) {
    const TensorView& view = part.parameters[n];
    if (!view.given() || !of_call.fits(specs[n], view.dims())) {
      throw_error(ErrorKind::kValue, who, ": ", specs[n].name, ": expected ",
                  of_call.text(specs[n]), ", got ", Shape{view});
    }
    if (specs[n].integers() ? view.dtype != specs[n].integer : !is_floating(view.dtype)) {
      throw_error(ErrorKind::kType, who, ": ", specs[n].name, ": expected ",
                  specs[n].integers() ? dtype_name(specs[n].integer) : "a floating dtype", ", got ",
                  dtype_name(view.dtype));
    }
  }
}

ParameterSums zero_sums(const Part& part, const std::vector<bool>& wants) {
  ParameterSums sums(part.parameters.size());
  for (size_t p = 0; p < sums.size(); ++p) {
    if (wants[p]) sums[p] = zeros(part.parameters[p].numel());
  }
  return sums;
}

void pull_back_parts(const Position& position, const CallSizes& sizes,
                     const std::vector<std::vector<bool>>& all_wants, TermGradients gradients,
                     const std::vector<std::vector<TensorView>>& parameters) {
  TermCounts at;
  for (size_t n = 0; n < position.parts.size() && n < parameters.size(); ++n) {
    const Part& part = position.parts[n];
    TermGradients own;
    for_each_kind([&](const char*, auto list, auto sums) {
      own.*sums = take(gradients.*sums, at[list], part.recipe->counts[list]);
    });
    const std::vector<bool>& wants = all_wants[n];
    ParameterSums sums = zero_sums(part, wants);
    part.recipe->pull_back({sizes, part.parameters, wants}, own, sums);
    for (size_t p = 0; p < sums.size(); ++p) {
      if (wants[p]) write_values(sums[p], parameters[n][p]);
    }
  }
}

}  // namespace relpos
