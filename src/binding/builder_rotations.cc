// Builder's rotations: by positions, coordinates, frequencies of heads or given tables.
#include <algorithm>
#include <string>
#include <utility>

#include "base/parallel.h"
#include "binding/coordinates.h"
#include "binding/over_heads.h"
#include "binding/recipe.h"
#include "binding/source.h"
#include "relpos/scheme.h"

namespace relpos {
namespace {

// The heads of tables that are bound to a call; 1 where they are unknown.
int64_t table_heads(const CallSizes& sizes) { return std::max<int64_t>(sizes.own_kv_heads, 1); }

// Whether tables [B, (heads,) L, pairs] have an axis of heads that are not all alike.
bool has_own_heads(const TensorView& table) { return table.rank == 4 && table.shape[1] > 1; }

// The angles of a rotation in a call, and the way of their gradients, if there are any.
struct BoundAngles {
  std::function<decltype(Rotation::angles)(const PartCall& call)> bind;
  std::function<void(const PartCall& call, const TermGradients::Turns& own, ParameterSums& sums)>
      pull_back{};
};

Rotation::ByCoordinates by_coordinates(const PairFrequencies& turn, const std::vector<int>& axis,
                                       Coordinates coordinates) {
  Rotation::ByCoordinates by;
  by.frequency = turn.frequency;
  by.float32_angles = turn.float32_angles;
  by.axis = axis;
  by.coordinates = std::make_shared<const Coordinates>(std::move(coordinates));
  return by;
}

BoundAngles bound(const Rotation::ByPosition& turn, std::monostate) {
  return {[=](const PartCall&) { return turn; }};
}

BoundAngles bound(const Rotation::ByPosition& turn, const TurnBy::Length& by) {
  const auto of_length = [=](int64_t length) {
    Rotation::ByPosition own = turn;
    own.frequency = by.frequency(length);
    return own;
  };
  if (by.length) return bound(of_length(*by.length), std::monostate());
  return {[=](const PartCall& call) { return of_length(call.sizes.length); }};
}

BoundAngles bound(const Rotation::ByPosition& turn, const TurnBy::Coordinates& by) {
  const int64_t axes = by.axis.empty() ? 0 : 1 + *std::max_element(by.axis.begin(), by.axis.end());
  return {[=](const PartCall& call) {
    return by_coordinates(turn, by.axis, coordinates_at(call.positions, axes, by.coordinate));
  }};
}

BoundAngles bound(const Rotation::ByPosition& turn, const TurnBy::GivenCoordinates& by) {
  const SourceReader queries(by.queries), keys(by.keys);
  return {[=](const PartCall& call) {
    const TermData of_queries = queries.read(call), of_keys = keys.read(call);
    Coordinates given = coordinates_given(of_queries.view, of_keys.view);
    given.q_source = of_queries.source;
    given.k_source = of_keys.source;
    return by_coordinates(turn, by.axis, std::move(given));
  }};
}

BoundAngles bound(const Rotation::ByPosition&, const TurnBy::HeadFrequencies& by) {
  const SourceReader numbers(by.frequency);
  return {[=](const PartCall& call) {
            const TermData frequency = numbers.read(call);
            return Rotation::ByHead{frequency,
                                    std::make_shared<const Coordinates>(coordinates_at(
                                        call.positions, frequency.view.shape[0], by.coordinate))};
          },
          [=](const PartCall& call, const TermGradients::Turns& own, ParameterSums& sums) {
            numbers.add_gradient(call, own.head_frequency, sums);
          }};
}

BoundAngles bound(const Rotation::ByPosition&, const TurnBy::Tables& by) {
  const SourceReader q_cos(by.q_cos), q_sin(by.q_sin), k_cos(by.k_cos), k_sin(by.k_sin);
  return {[=](const PartCall& call) {
            const auto of_heads = [&](const SourceReader& table) {
              TermData data = table.read(call);
              if (has_own_heads(data.view)) return data;
              const auto [shape, strides] = std::pair{data.view.shape, data.view.strides};
              const auto first = static_cast<size_t>(data.view.rank - 2);  // of the last two axes
              data.view.rank = 4;
              data.view.shape = {shape[0], table_heads(call.sizes), shape[first], shape[first + 1]};
              data.view.strides = {strides[0], 0, strides[first], strides[first + 1]};
              return data;
            };
            return Rotation::Tables{of_heads(q_cos), of_heads(q_sin), of_heads(k_cos),
                                    of_heads(k_sin)};
          },
          [=](const PartCall& call, const TermGradients::Turns& own, ParameterSums& sums) {
            const int64_t heads = table_heads(call.sizes);
            const auto add = [&](const SourceReader& table, const std::vector<double>& gradient) {
              const TensorView view = table.read(call).view;
              const bool each = has_own_heads(view);
              table.add_gradient(
                  call, each ? gradient : sum_of_heads(gradient, view.shape[0], heads), sums);
            };
            add(q_cos, own.q_cos);
            add(q_sin, own.q_sin);
            add(k_cos, own.k_cos);
            add(k_sin, own.k_sin);
          }};
}

}  // namespace

void Builder::check_turn(const TurnBy::Any& by) const {
  const auto refuse_none = [&](bool given) {
    require(given, "rotation: expected a function, of the coordinate or of the length");
  };
  if (const auto* own = std::get_if<TurnBy::Coordinates>(&by))
    refuse_none(own->coordinate != nullptr);
  if (const auto* own = std::get_if<TurnBy::Length>(&by)) refuse_none(own->frequency != nullptr);
  if (const auto* own = std::get_if<TurnBy::HeadFrequencies>(&by)) {
    refuse_none(own->coordinate != nullptr);
    check_numbers(own->frequency, {3}, "rotation", "frequencies [axes, Hk or 1, pairs]");
  }
  if (const auto* own = std::get_if<TurnBy::GivenCoordinates>(&by)) {
    check_integers(own->queries, {3}, "rotation", "coordinates of queries [B, axes, Lq]");
    check_integers(own->keys, {3}, "rotation", "coordinates of keys [B, axes, Lk]");
  }
  if (const auto* own = std::get_if<TurnBy::Tables>(&by)) {
    for (const Source* table : {&own->q_cos, &own->q_sin, &own->k_cos, &own->k_sin}) {
      check_numbers(*table, {3, 4}, "rotation", "cosines and sines [B, (Hk,) L, pairs]");
    }
  }
}

void Builder::rotation(const Rotation& rotation, const TurnBy::Any& by) {
  const auto* length = std::get_if<TurnBy::Length>(&by);
  if (length != nullptr && !length->length) recipe_.reads_length = true;
  const auto* turn = rotation.by<Rotation::ByPosition>();
  require(turn != nullptr, "rotation: expected angles by position; TurnBy says what replaces them");
  check_turn(by);
  const BoundAngles angles = std::visit([&](const auto& own) { return bound(*turn, own); }, by);
  recipe_.add(
      &Terms::rotations, &TermGradients::rotations,
      [=, bind = angles.bind](const PartCall& call) {
        Rotation own = rotation;
        own.angles = bind(call);
        return own;
      },
      [pull_back = angles.pull_back](const PartCall& call, const TermGradients::Turns& own,
                                     ParameterSums& sums) {
        if (pull_back) pull_back(call, own, sums);
      });
}

}  // namespace relpos
