// What a scheme says, as terms of its recipe: how a call binds each, and beside it the way back of
// its gradients.
#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "base/parallel.h"
#include "binding/by_distance.h"
#include "binding/coordinates.h"
#include "binding/formula.h"
#include "binding/map_of_call.h"
#include "binding/network.h"
#include "binding/over_heads.h"
#include "binding/projection.h"
#include "binding/recipe.h"
#include "binding/source.h"
#include "relpos/scheme.h"

namespace relpos {
namespace {

// The rows of a table [M, ...], or [H, M, ...].
int64_t rows_of(const TermData& table) { return table.view.shape[table.view.rank == 3 ? 1 : 0]; }

// A term that is one source.
void add_numbers(Recipe& recipe, const Source& source, std::vector<TermData> Terms::* list,
                 std::vector<std::vector<double>> TermGradients::* sums_of) {
  const SourceReader numbers(source);
  recipe.add(
      list, sums_of, [=](const PartCall& call) { return numbers.read(call); },
      [=](const PartCall& call, const std::vector<double>& own, ParameterSums& sums) {
        numbers.add_gradient(call, own, sums);
      });
}

Builder::FeatureRows one_by_one(int64_t width, const Builder::Features& features) {
  return [=](int64_t first, int64_t count, double* rows) {
    CancelTicks tick;
    for (int64_t m = 0; m < count; ++m) {
      tick(width);
      features(first + m, rows + m * width);
    }
  };
}

}  // namespace

// What the bound terms of `along` are read by; null: positions.
std::function<Builder::Seen(const PartCall&)> Builder::coordinates_of(
    const std::optional<Along>& along) const {
  check_along(along);
  if (!along) return [](const PartCall&) { return Seen(nullptr, 0); };
  if (!along->queries) {
    return [along = *along](const PartCall& call) {
      return Seen(std::make_shared<const Coordinates>(
                      coordinates_at(call.positions, along.query, along.key)),
                  0);
    };
  }
  return
      [q = along->queries->index_, k = along->keys->index_, along = *along](const PartCall& call) {
        Coordinates given = coordinates_given(call.parameters[q], call.parameters[k]);
        if (along.of_query) {
          given = coordinates_read(given, call.positions, along);
        } else {
          given.q_source = &*along.queries;
          given.k_source = &*along.keys;
        }
        return Seen(std::make_shared<const Coordinates>(std::move(given)), along.axis);
      };
}

void Builder::table_bias(const AnyMap& map, const Source& table,
                         const std::optional<Along>& along) {
  check_numbers(table, {2}, "bias", "a table [H, M] or [1, M]");
  check_map(map, "bias");
  const SourceReader numbers(table);
  recipe_.add(
      &Terms::biases, &TermGradients::biases,
      [=, of_call = MapOfCall(map), seen = coordinates_of(along)](const PartCall& call) {
        const auto [coordinates, axis] = seen(call);
        const TermData read = numbers.read(call);
        return DistanceBias{of_call.map(call, read.view.shape[1]),
                            over_heads(read, call.sizes.heads),
                            {},
                            coordinates,
                            axis};
      },
      [=](const PartCall& call, const TermGradients::Bias& own, ParameterSums& sums) {
        if (!numbers.wanted(call)) return;
        const bool shared = numbers.read(call).view.shape[0] == 1 && call.sizes.heads > 1;
        numbers.add_gradient(
            call, shared ? sum_of_heads(own.table, 1, call.sizes.heads) : own.table, sums);
      });
}

void Builder::bias(const ClassMap& map, const Perceptron& perceptron) {
  check_perceptron(perceptron);
  const std::vector<int64_t>& first = recipe_.specs[perceptron.first_weight.index_].shape;
  const std::vector<int64_t>& second = recipe_.specs[perceptron.second_weight.index_].shape;
  const PerceptronTable table(perceptron, first.at(1), first.at(0), second.at(0), map.classes());
  recipe_.add(
      &Terms::biases, &TermGradients::biases,
      [=](const PartCall& call) { return DistanceBias{map, table.table(call), {}}; },
      [=](const PartCall& call, const TermGradients::Bias& own, ParameterSums& sums) {
        table.pull_back(call, own.table, sums);
      });
}

void Builder::formula_bias(DistanceFormula formula, const std::vector<Source>& numbers) {
  require(!numbers.empty(), "bias: a formula needs a source with one number for each head");
  check_numbers(numbers[0], {}, "bias", "numbers of a formula");
  const int64_t heads = size_of(numbers[0]);
  for (const Source& source : numbers) {
    check_numbers(source, {}, "bias", "numbers of a formula");
    require(size_of(source) == heads, "a formula's parameters have one number for each head");
  }
  const FormulaTable table(scheme(), std::move(formula), heads, numbers);
  recipe_.reads_distances = true;
  recipe_.add(
      &Terms::biases, &TermGradients::biases,
      [=](const PartCall& call) { return table.bias(call); },
      [=](const PartCall& call, const TermGradients::Bias& own, ParameterSums& sums) {
        table.pull_back(call, own.table, sums);
      });
}

DistanceFormula Builder::sum_of(DistanceFormula one, int64_t count, size_t numbers) {
  const auto of = std::make_shared<const DistanceFormula>(std::move(one));
  DistanceFormula sum;
  sum.value = [=](double delta, const double* at) {
    double found = 0.0;
    CancelTicks tick;
    for (int64_t n = 0; n < count; ++n, at += numbers) {
      tick();
      found += of->value(delta, at);
    }
    return found;
  };
  sum.add_gradients = [=](double delta, const double* at, double upstream, double* gradients) {
    CancelTicks tick;
    for (int64_t n = 0; n < count; ++n, at += numbers, gradients += numbers) {
      tick();
      of->add_gradients(delta, at, upstream, gradients);
    }
  };
  return sum;
}

void Builder::bias(int64_t heads, Network network) {
  check_network(network);
  recipe_.has_reach = recipe_.has_reach || network.check_reach != nullptr;
  recipe_.reads_distances = true;
  std::vector<int64_t> widths{1};
  for (const Network::Layer& layer : network.layers) widths.push_back(size_of(layer.bias));
  require(widths.size() > 1 && widths.back() == heads,
          "a network ends in one number for each head");
  const auto table = std::make_shared<const NetworkTable>(scheme(), std::move(network), widths);
  recipe_.add(
      &Terms::biases, &TermGradients::biases,
      [=](const PartCall& call) { return table->bias(call); },
      [=](const PartCall& call, const TermGradients::Bias& own, ParameterSums& sums) {
        table->pull_back(call, own.table, sums);
      });
}

void Builder::slopes(const std::optional<Source>& past, const std::optional<Source>& future) {
  require(past || future, "slopes: expected one side or both");
  for (const std::optional<Source>* side : {&past, &future}) {
    if (*side) check_numbers(**side, {1}, "slopes", "numbers [H]");
  }
  const std::array<SourceReader, 2> sides{SourceReader(past), SourceReader(future)};
  const SourceReader& either = sides[past ? 0 : 1];
  recipe_.slopes.emplace_back(past, future);
  recipe_.add(
      &Terms::biases, &TermGradients::biases,
      [=, who = std::string(scheme())](const PartCall& call) {
        std::vector<double> slopes;
        const auto heads = static_cast<int64_t>(either.numbers(call).size());
        for (const SourceReader& side : sides) {
          const std::vector<double> own =
              side.given() ? side.numbers(call) : std::vector<double>(static_cast<size_t>(heads));
          for (size_t h = 0; h < own.size(); ++h) {
            check_value(std::isfinite(own[h]), who, ": slopes: expected finite numbers, got ",
                        own[h], " for head ", h);
          }
          slopes.insert(slopes.end(), own.begin(), own.end());
        }
        DistanceBias bias;
        bias.slopes = TermData::computed(std::move(slopes), {2, heads},
                                         sides[0].wanted(call) || sides[1].wanted(call));
        return bias;
      },
      [=](const PartCall& call, const TermGradients::Bias& own, ParameterSums& sums) {
        const std::vector<double>& both = own.slopes;
        const int64_t heads = std::ssize(both) / 2;
        for (int64_t side = 0; side < 2; ++side) {
          const SourceReader& slopes = sides[static_cast<size_t>(side)];
          if (!slopes.wanted(call)) continue;
          slopes.add_gradient_of_numbers(
              call, {both.begin() + side * heads, both.begin() + (side + 1) * heads}, sums);
        }
      });
}

void Builder::rows(const AnyMap& map, const Source& table, const RowOptions& options) {
  check_numbers(table, {2, 3}, "rows", "a table [M, r] or [H, M, r]");
  if (options.factor) check_numbers(*options.factor, {4}, "rows", "a factor [B, H, Lq, r]");
  if (options.added) check_numbers(*options.added, {2}, "rows", "added vectors [H, r]");
  check_map(map, "rows");
  const SourceReader numbers(table), factor(options.factor), added(options.added);
  recipe_.add(
      &Terms::row_tables, &TermGradients::row_tables,
      [=, of_call = MapOfCall(map), scale = options.scale,
       seen = coordinates_of(options.along)](const PartCall& call) {
        const auto [coordinates, axis] = seen(call);
        const TermData read = numbers.read(call);
        return RowTable{of_call.map(call, rows_of(read)),
                        read,
                        factor.read(call),
                        added.read(call),
                        scale,
                        coordinates,
                        axis};
      },
      [=](const PartCall& call, const TermGradients::Rows& own, ParameterSums& sums) {
        numbers.add_gradient(call, own.table, sums);
        factor.add_gradient(call, own.factor, sums);
        added.add_gradient(call, own.added, sums);
      });
}

void Builder::projected_rows(int64_t heads, const Source& weight, const Features& features,
                             const std::optional<Source>& added) {
  projected_rows(heads, weight, one_by_one(width_of(weight), features), added);
}

void Builder::projected_rows(int64_t heads, const Source& weight, const FeatureRows& features,
                             const std::optional<Source>& added) {
  project_rows(heads, weight, [features](int64_t) { return features; }, added);
}

void Builder::projected_rows(int64_t heads, const Source& weight, const FeaturesOf& features,
                             const std::optional<int64_t>& length,
                             const std::optional<Source>& added) {
  if (length) return projected_rows(heads, weight, features(*length), added);
  recipe_.reads_length = true;
  project_rows(
      heads, weight,
      [features, width = width_of(weight)](int64_t of) { return one_by_one(width, features(of)); },
      added);
}

int64_t Builder::width_of(const Source& weight) const {
  check_numbers(weight, {2, 3}, "projected_rows", "weights [H D, width] or [H, D, width]");
  return recipe_.specs[weight.index_].shape.at(static_cast<size_t>(weight.axes_.back()));
}

void Builder::project_rows(int64_t heads, const Source& weight,
                           const std::function<FeatureRows(int64_t length)>& features,
                           const std::optional<Source>& adds) {
  if (adds) check_numbers(*adds, {2}, "projected_rows", "added vectors [H, D]");
  const SourceReader numbers(weight), added(adds);
  const int64_t width = width_of(weight);
  const auto projection = [=, who = std::string(scheme()),
                           rows = size_of(weight) / width](const CallSizes& sizes) {
    return Projection{heads,
                      rows / heads,
                      width,
                      sizes.first_distance,
                      distance_count(sizes, rows + width, who),
                      sizes.in_double,
                      sizes.threads,
                      features(sizes.length)};
  };
  recipe_.reads_distances = true;
  recipe_.add(
      &Terms::row_tables, &TermGradients::row_tables,
      [=](const PartCall& call) {
        const Projection of = projection(call.sizes);
        RowTable rows;
        rows.map = ClassMap::clamp(of.first, of.first + of.span - 1);
        rows.table = call.sizes.shapes_only ? of.blank() : of.table(numbers.numbers(call));
        rows.table.source = numbers.source();
        rows.table.projection = std::make_shared<Projection>(of);
        rows.table.wants_gradient = numbers.wanted(call);
        rows.added = added.read(call);
        return rows;
      },
      [=](const PartCall& call, const TermGradients::Rows& own, ParameterSums& sums) {
        if (numbers.wanted(call)) {
          numbers.add_gradient_of_numbers(call, projection(call.sizes).weight_gradient(own.table),
                                          sums);
        }
        added.add_gradient(call, own.added, sums);
      });
}

void Builder::columns(const AnyMap& map, const Source& table, const ColumnOptions& options) {
  check_numbers(table, {2, 3}, "columns", "a table [M, r] or [H, M, r]");
  if (options.factor) check_numbers(*options.factor, {4}, "columns", "a factor [B, Hk, Lk, r]");
  check_map(map, "columns");
  const SourceReader numbers(table), factor(options.factor);
  recipe_.add(
      &Terms::column_tables, &TermGradients::column_tables,
      [=, of_call = MapOfCall(map), scale = options.scale](const PartCall& call) {
        const TermData read = numbers.read(call);
        return ColumnTable{of_call.map(call, rows_of(read)), read, factor.read(call), scale};
      },
      [=](const PartCall& call, const TermGradients::Rows& own, ParameterSums& sums) {
        numbers.add_gradient(call, own.table, sums);
        factor.add_gradient(call, own.factor, sums);
      });
}

void Builder::query_added(const Source& added) {
  check_numbers(added, {2}, "query_added", "vectors [H, D]");
  add_numbers(recipe_, added, &Terms::query_added, &TermGradients::query_added);
  ++recipe_.positionless;
}

void Builder::sink(const Source& scores) {
  check_numbers(scores, {1, 3}, "sink", "scores [H] or [B, H, Lq]");
  add_numbers(recipe_, scores, &Terms::sinks, &TermGradients::sinks);
  ++recipe_.positionless;
}

void Builder::values(const AnyMap& map, const Source& table) {
  check_numbers(table, {2, 3}, "values", "a table [M, Dv] or [H, M, Dv]");
  check_map(map, "values");
  const SourceReader numbers(table);
  recipe_.add(
      &Terms::value_tables, &TermGradients::value_tables,
      [=, of_call = MapOfCall(map)](const PartCall& call) {
        const TermData read = numbers.read(call);
        return ValueTable{of_call.map(call, rows_of(read)), read};
      },
      [=](const PartCall& call, const TermGradients::Values& own, ParameterSums& sums) {
        numbers.add_gradient(call, own.table, sums);
      });
}

void Builder::key_bias(const Source& values, bool up_to_query) {
  check_numbers(values, {2, 3}, "key_bias", "values [H, Lk] or [B, H, Lk]");
  if (values.cumulative_) recipe_.specs[values.index_].cumulative = true;
  if (!up_to_query) ++recipe_.positionless;
  const SourceReader numbers(values);
  recipe_.key_biases.push_back(values);
  recipe_.add(
      &Terms::key_biases, &TermGradients::key_biases,
      [=](const PartCall& call) { return KeyBias{numbers.read(call), up_to_query}; },
      [=](const PartCall& call, const TermGradients::Values& own, ParameterSums& sums) {
        numbers.add_gradient(call, own.table, sums);
      });
}

}  // namespace relpos
