#include "relpos/lower.h"

#include <algorithm>
#include <concepts>
#include <list>
#include <tuple>
#include <utility>
#include <vector>

#include "binding/bound_part.h"
#include "binding/projection.h"
#include "binding/source.h"
#include "call/make_problem.h"
#include "values/term_kinds.h"

namespace relpos {
namespace {

// Whether the class map of a term may be one that is given with the call.
bool maps_are_given(const Part& part) {
  return std::ranges::any_of(part.specs(),
                             [](const ParameterSpec& spec) { return spec.integers(); });
}

// What a bias is, where it is other than a table that a parameter holds, read by distances.
std::string other_kind(const DistanceBias& bias, const Part& part, int64_t heads) {
  if (bias.slopes.view.given()) return "slopes";
  if (bias.coordinates) return "distance bias of a coordinate";
  if (maps_are_given(part)) return "distance bias of a given map";
  if (bias.table.source == nullptr) return "computed distance bias";
  const ReadParameter read = SourceReader::parameter_of(*bias.table.source);
  const std::vector<int64_t> shape = part.parameters[read.index].dims();
  if (!read.chosen.empty() || read.axes.size() != shape.size()) return "bias of a part of a table";
  return shape[static_cast<size_t>(read.axes[0])] == heads ? "" : "distance bias of all heads";
}

LoweredTerm lower_bias(const DistanceBias& bias, const Part& part, int64_t first_parameter,
                       int64_t heads) {
  LoweredTerm term;
  term.scheme = part.scheme().name;
  term.kind = other_kind(bias, part, heads);
  if (!term.kind.empty()) return term;
  term.kind = "distance bias";
  std::tie(term.starts, term.classes) = bias.map->runs();
  const ReadParameter read = SourceReader::parameter_of(*bias.table.source);
  term.parameter = first_parameter + static_cast<int64_t>(read.index);
  term.axes = read.axes;
  term.multiplier = bias.table.multiplier;
  return term;
}

// What a sink reads, where it is a whole parameter; else it stays a computed one.
void read_sink(const TermData& sink, const Part& part, int64_t first_parameter, LoweredTerm& term) {
  term.kind = "computed sink";
  if (sink.source == nullptr) return;
  const ReadParameter read = SourceReader::parameter_of(*sink.source);
  const bool whole = read.chosen.empty() && std::ranges::is_sorted(read.axes) &&
                     read.axes.size() == static_cast<size_t>(part.parameters[read.index].rank);
  if (!whole) return;
  term.kind = "sink";
  term.parameter = first_parameter + static_cast<int64_t>(read.index);
  term.axes = read.axes;
  term.multiplier = sink.multiplier;
}

// Whether a term reads numbers of a parameter as they are, or none; then `to` says how.
bool read_numbers(const TermData& data, int64_t first_parameter, LoweredNumbers& to) {
  if (!data.view.given()) return true;
  if (data.source == nullptr) return false;
  const ReadParameter read = SourceReader::parameter_of(*data.source);
  to = {first_parameter + static_cast<int64_t>(read.index), read.axes, read.chosen,
        read.multiplier};
  return true;
}

// A table of rows; `term.kind` is its kind's, and says more of what is not lowered.
void lower_rows(const RowTable& rows, const Part& part, int64_t first_parameter, double scale,
                LoweredTerm& term) {
  if (rows.coordinates) {
    term.kind += " of a coordinate";
  } else if (maps_are_given(part)) {
    term.kind += " of a given map";
  } else if (!read_numbers(rows.table, first_parameter, term.table) ||
             !read_numbers(rows.factor, first_parameter, term.factor) ||
             !read_numbers(rows.added, first_parameter, term.added)) {
    term.kind = "computed " + term.kind;
  } else {
    std::tie(term.starts, term.classes) = rows.map.runs();
    term.scale = rows.scale.value_or(scale);
    if (const Projection* projection = rows.table.projection.get()) {
      term.projection = {projection->width, projection->features_of_all()};
    }
  }
}

// The position with initial values in place of its numbers, which `memory` keeps.
Position with_stand_ins(Position position, std::list<std::vector<double>>& memory) {
  for (Part& part : position.parts) {
    for (size_t n = 0; n < part.parameters.size() && n < part.specs().size(); ++n) {
      TensorView& view = part.parameters[n];
      if (!view.given() || !is_floating(view.dtype)) continue;
      view = stand_in(part.specs()[n], view.dims(), memory.emplace_back());
    }
  }
  return position;
}

}  // namespace

LoweredCall lower(const TensorView& query, const TensorView& key, const TensorView& value,
                  const Position& position, const Options& options) {
  std::list<std::vector<double>> memory;
  const Call call = make_call(query, key, value, with_stand_ins(position, memory), options, {},
                              /*shapes_only=*/true);
  const Problem& problem = call.problem;
  LoweredCall lowered{problem.scale, problem.positions.consecutive, {}};
  TermCounts at;
  int64_t first_parameter = 0;
  for (const Part& part : position.parts) {
    for_each_kind([&](const char* kind, auto list, auto) {
      for (size_t n = 0; n < part.recipe->counts[list]; ++n) {
        const size_t term = at[list]++;
        if constexpr (std::same_as<decltype(list), std::vector<DistanceBias> Terms::*>) {
          lowered.terms.push_back(
              lower_bias((problem.terms.*list)[term], part, first_parameter, problem.heads));
        } else {
          LoweredTerm& other = lowered.terms.emplace_back();
          other.scheme = part.scheme().name;
          other.kind = kind;
          if constexpr (std::same_as<decltype(list), std::vector<TermData> Terms::*>) {
            if (list == &Terms::sinks) {
              read_sink((problem.terms.*list)[term], part, first_parameter, other);
            } else if (!read_numbers((problem.terms.*list)[term], first_parameter, other.table)) {
              other.kind = "computed " + other.kind;
            }
          } else if constexpr (std::same_as<decltype(list), std::vector<RowTable> Terms::*>) {
            lower_rows((problem.terms.*list)[term], part, first_parameter, problem.scale, other);
          }
        }
      }
    });
    first_parameter += static_cast<int64_t>(part.parameters.size());
  }
  return lowered;
}

}  // namespace relpos
