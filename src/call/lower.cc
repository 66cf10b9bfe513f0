#include "relpos/lower.h"

#include <algorithm>
#include <concepts>
#include <list>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "binding/bound_part.h"
#include "binding/parts.h"
#include "binding/projection.h"
#include "binding/source.h"
#include "call/computed_tables.h"
#include "call/make_problem.h"
#include "values/term_kinds.h"

namespace relpos {
namespace {

LoweredNumbers numbers_of(const Source& source, int64_t first_parameter) {
  const ReadParameter read = SourceReader::parameter_of(source);
  return {first_parameter + static_cast<int64_t>(read.index), read.axes, read.chosen,
          read.multiplier};
}

// Whether a term reads numbers of a parameter as they are, or none; then `to` says how.
bool read_numbers(const TermData& data, int64_t first_parameter, LoweredNumbers& to) {
  if (!data.view.given()) return true;
  if (data.source == nullptr) return false;
  to = numbers_of(*data.source, first_parameter);
  return true;
}

LoweredMap map_of(const ClassMap& map) {
  LoweredMap found;
  std::tie(found.starts, found.classes) = map.runs();
  return found;
}

// Of pairs whose class is the row of a table of so many.
LoweredMap map_of_classes(int64_t rows) { return map_of(ClassMap::zero_outside(0, rows - 1)); }

// The numbers of one axis, of [axes, rows, length].
std::vector<int64_t> on_axis(const std::vector<int64_t>& numbers, int64_t axis, int64_t axes) {
  const auto count = std::ssize(numbers) / axes;
  return {numbers.begin() + axis * count, numbers.begin() + (axis + 1) * count};
}

// What the distance of a term by distances is.
template <typename Term>
LoweredDistance distance_of(const Term& term, int64_t first_parameter) {
  if (term.coordinates == nullptr) return std::monostate();
  const Coordinates& at = *term.coordinates;
  LoweredCoordinates found;
  if (at.q_source != nullptr) {
    found.of_queries = numbers_of(*at.q_source, first_parameter);
    found.of_keys = numbers_of(*at.k_source, first_parameter);
    found.axis = term.axis;
  } else {
    found.q = on_axis(at.q, term.axis, at.axes);
    found.k = on_axis(at.k, term.axis, at.axes);
  }
  return found;
}

LoweredDistance distance_of(const PairClasses& classes, int64_t first_parameter) {
  return LoweredClasses{numbers_of(*classes.source, first_parameter).parameter, classes.hidden};
}

// What the slopes of one side read, if they are given; false where numbers are not a parameter's as they are.
bool read_slopes(const std::optional<Source>& source, int64_t first_parameter, LoweredNumbers& to) {
  if (!source) return true;
  const ReadParameter read = SourceReader::parameter_of(*source);
  to = numbers_of(*source, first_parameter);
  return !read.bounded && !read.cumulative;
}

void lower_slopes(const Recipe::Slopes& of, int64_t first_parameter, LoweredTerm& term) {
  LoweredSlopes slopes;
  const bool past = read_slopes(of.first, first_parameter, slopes.past);
  const bool future = read_slopes(of.second, first_parameter, slopes.future);
  term.kind = past && future ? "slopes" : "computed slopes";
  if (past && future) term.what = std::move(slopes);
}

// Says the bias of a table whose numbers are a parameter's as they are.
void lower_numbers(const TermData& table, int64_t first_parameter, LoweredBias found,
                   LoweredTerm& term) {
  if (read_numbers(table, first_parameter, found.table)) {
    term.what = std::move(found);
  } else {
    term.kind = "computed " + term.kind;
  }
}

void lower_bias(const DistanceBias& bias, const Part& part, int64_t first_parameter,
                LoweredTerm& term) {
  if (is_computed_table(bias)) {
    term.kind = "computed table";
    const int64_t end = first_parameter + static_cast<int64_t>(part.parameters.size());
    term.what =
        LoweredComputedTable{map_of(*bias.map), bias.table.view.shape[0], first_parameter, end};
    return;
  }
  LoweredBias found{map_of(*bias.map), {}, distance_of(bias, first_parameter)};
  lower_numbers(bias.table, first_parameter, std::move(found), term);
}

void lower_pair_bias(const PairBias& bias, int64_t first_parameter, LoweredTerm& term) {
  LoweredBias found{
      map_of_classes(bias.table.view.shape[1]), {}, distance_of(bias.classes, first_parameter)};
  lower_numbers(bias.table, first_parameter, std::move(found), term);
}

// Frequencies [axes, pairs] of which each pair has one.
std::vector<double> by_axis(const Rotation::ByCoordinates& by, int64_t axes) {
  const size_t pairs = by.frequency.size();
  std::vector<double> found(static_cast<size_t>(axes) * pairs, 0.0);
  for (size_t p = 0; p < pairs; ++p) {
    found[static_cast<size_t>(by.axis[p]) * pairs + p] = by.frequency[p];
  }
  return found;
}

// Fills in what a rotation turns by; false where numbers are not a parameter's as they are.
bool read_angles(const Rotation::ByPosition& by, int64_t, LoweredTurn& turn) {
  turn.by = "position";
  turn.axes = 1;
  turn.frequency = by.frequency;
  turn.float32_angles = by.float32_angles;
  return true;
}

bool read_angles(const Rotation::ByCoordinates& by, int64_t first_parameter, LoweredTurn& turn) {
  const Coordinates& at = *by.coordinates;
  turn.axes = at.axes;
  turn.frequency = by_axis(by, at.axes);
  turn.float32_angles = by.float32_angles;
  if (at.q_source != nullptr) {
    turn.by = "inputs";
    turn.numbers = {numbers_of(*at.q_source, first_parameter),
                    numbers_of(*at.k_source, first_parameter)};
  } else {
    turn.by = "coordinates";
    turn.q = at.q;
    turn.k = at.k;
  }
  return true;
}

bool read_angles(const Rotation::ByHead& by, int64_t first_parameter, LoweredTurn& turn) {
  turn.by = "coordinates";
  turn.axes = by.coordinates->axes;
  turn.q = by.coordinates->q;
  turn.k = by.coordinates->k;
  return read_numbers(by.frequency, first_parameter, turn.numbers.emplace_back());
}

bool read_angles(const Rotation::Tables& by, int64_t first_parameter, LoweredTurn& turn) {
  turn.by = "tables";
  const TermData* tables[] = {&by.q_cos, &by.q_sin, &by.k_cos, &by.k_sin};
  return std::ranges::all_of(tables, [&](const TermData* table) {
    return read_numbers(*table, first_parameter, turn.numbers.emplace_back());
  });
}

void lower_key_bias(const Source& source, int64_t first_parameter, LoweredTerm& term) {
  const ReadParameter read = SourceReader::parameter_of(source);
  if (read.bounded) {
    term.kind = "computed key bias";
  } else {
    term.what = LoweredKeyBias{numbers_of(source, first_parameter), read.cumulative};
  }
}

void lower_rotation(const Rotation& rotation, int64_t first_parameter, LoweredTerm& term) {
  LoweredTurn turn;
  turn.start = rotation.start;
  turn.dims = rotation.dims;
  turn.interleaved = rotation.layout == PairLayout::kInterleaved;
  turn.magnitude = rotation.magnitude;
  const auto read = [&](const auto& by) { return read_angles(by, first_parameter, turn); };
  if (rotation.decays()) {
    term.kind = "decaying rotation";
  } else if (!std::visit(read, rotation.angles)) {
    term.kind = "computed rotation";
  } else {
    term.what = std::move(turn);
  }
}

// A vector that joins the queries.
void lower_vector(const TermData& data, int64_t first_parameter, LoweredTerm& term) {
  LoweredNumbers numbers;
  if (read_numbers(data, first_parameter, numbers)) {
    term.what = std::move(numbers);
  } else {
    term.kind = "computed " + term.kind;
  }
}

// A sink is read where it is a whole parameter.
void lower_sink(const TermData& sink, const Part& part, int64_t first_parameter,
                LoweredTerm& term) {
  if (sink.source != nullptr) {
    const ReadParameter read = SourceReader::parameter_of(*sink.source);
    const bool whole = read.chosen.empty() && std::ranges::is_sorted(read.axes) &&
                       read.axes.size() == static_cast<size_t>(part.parameters[read.index].rank);
    if (whole) term.what = numbers_of(*sink.source, first_parameter);
  }
  term.kind = std::holds_alternative<std::monostate>(term.what) ? "computed sink" : "sink";
}

// A table that distances choose a row of; `term.kind` is its kind's, and says more of what is not lowered.
template <typename Table>
void lower_table(const Table& table, int64_t first_parameter, double scale, LoweredTerm& term) {
  LoweredRows rows;
  bool read = read_numbers(table.table, first_parameter, rows.table);
  if constexpr (!std::same_as<Table, ValueTable>) {
    read &= read_numbers(table.factor, first_parameter, rows.factor);
    rows.scale = table.scale.value_or(scale);
  }
  if constexpr (std::same_as<Table, RowTable>) {
    read &= read_numbers(table.added, first_parameter, rows.added);
    rows.delta = distance_of(table, first_parameter);
  }
  if constexpr (std::same_as<Table, PairRows>) {
    rows.delta = distance_of(table.classes, first_parameter);
    rows.map =
        map_of_classes(table.table.view.shape[static_cast<size_t>(table.table.view.rank - 2)]);
  } else {
    rows.map = map_of(table.map);
  }
  if (!read) {
    term.kind = "computed " + term.kind;
    return;
  }
  if (const Projection* projection = table.table.projection.get()) {
    rows.width = projection->width;
    rows.features = projection->features_of_all();
  }
  term.what = std::move(rows);
}

// Whether coordinates that were computed say where tokens stand for the term.
bool stands_at_computed(const LoweredTerm& term) {
  const auto computed = [](const LoweredDistance& delta) {
    const auto* along = std::get_if<LoweredCoordinates>(&delta);
    return along != nullptr && along->of_queries.parameter < 0;
  };
  if (const auto* bias = std::get_if<LoweredBias>(&term.what)) return computed(bias->delta);
  if (const auto* rows = std::get_if<LoweredRows>(&term.what)) return computed(rows->delta);
  const auto* turn = std::get_if<LoweredTurn>(&term.what);
  return turn != nullptr && turn->by == "coordinates";
}

template <typename T>
concept IsTable = std::same_as<T, RowTable> || std::same_as<T, ColumnTable> ||
                  std::same_as<T, PairRows> || std::same_as<T, ValueTable>;

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
  LoweredCall lowered{problem.scale,
                      problem.positions.consecutive,
                      reads_length(position) || reads_distances(position),
                      false,
                      {}};
  TermCounts at;
  int64_t first_parameter = 0;
  for (const Part& part : position.parts) {
    lowered.reads_inputs |= part.recipe->maps_are_given;
    size_t slopes = 0;  // of the part's biases, those with slopes
    for_each_kind([&](const char* kind, auto list, auto) {
      for (size_t n = 0; n < part.recipe->counts[list]; ++n) {
        const auto& data = (problem.terms.*list)[at[list]++];
        using Data = std::remove_cvref_t<decltype(data)>;
        LoweredTerm& term = lowered.terms.emplace_back(LoweredTerm{part.scheme().name, kind, {}});
        if constexpr (std::same_as<Data, DistanceBias>) {
          if (data.slopes.view.given()) {
            lower_slopes(part.recipe->slopes[slopes++], first_parameter, term);
          } else {
            lower_bias(data, part, first_parameter, term);
          }
        } else if constexpr (std::same_as<Data, TermData>) {
          if (list == &Terms::sinks) {
            lower_sink(data, part, first_parameter, term);
          } else {
            lower_vector(data, first_parameter, term);
          }
        } else if constexpr (std::same_as<Data, PairBias>) {
          lower_pair_bias(data, first_parameter, term);
        } else if constexpr (std::same_as<Data, KeyBias>) {
          lower_key_bias(part.recipe->key_biases[n], first_parameter, term);
        } else if constexpr (std::same_as<Data, Rotation>) {
          lower_rotation(data, first_parameter, term);
        } else if constexpr (IsTable<Data>) {
          lower_table(data, first_parameter, problem.scale, term);
        }
        if (!stands_at_computed(term)) continue;
        lowered.reads_positions = true;
        lowered.reads_inputs |= std::ranges::any_of(part.specs(), &ParameterSpec::integers);
      }
    });
    first_parameter += static_cast<int64_t>(part.parameters.size());
  }
  return lowered;
}

}  // namespace relpos
