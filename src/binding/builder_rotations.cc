// Builder's rotations: by angles, coordinates, trained frequencies or given tables.
#include <string>
#include <utility>

#include "base/parallel.h"
#include "base/zeros.h"
#include "binding/coordinates.h"
#include "binding/recipe.h"
#include "binding/source.h"
#include "relpos/scheme.h"

namespace relpos {
namespace {

// Of tables that are bound to a call; 1 where its heads are unknown.
int64_t table_heads(const CallSizes& sizes) { return std::max<int64_t>(sizes.own_kv_heads, 1); }

// [batch, ...] of [batch, heads, ...]; empty stays empty.
std::vector<double> sum_of_heads(const std::vector<double>& all, int64_t batch, int64_t heads) {
  if (all.empty()) return {};
  const auto rows = static_cast<size_t>(batch), count = static_cast<size_t>(heads);
  const size_t size = all.size() / rows / count;
  std::vector<double> sums = zeros(static_cast<int64_t>(rows * size));
  for (size_t row = 0; row < rows * count; ++row) {
    check_cancelled();
    double* to = sums.data() + row / count * size;
    const double* of_row = all.data() + row * size;
    in_pieces(static_cast<int64_t>(size), [&](int64_t from, int64_t end) {
      for (int64_t n = from; n < end; ++n) to[n] += of_row[n];
    });
  }
  return sums;
}

}  // namespace

void Builder::rotation(Rotation rotation) {
  fixed_rotation([turn = std::move(rotation)](const PartCall&) { return turn; });
}

void Builder::rotation(Rotation rotation, CoordinateOf coordinate) {
  fixed_rotation(
      [=, turn = std::move(rotation), coordinate = std::move(coordinate)](const PartCall& call) {
        Rotation own = turn;
        own.coordinates = std::make_shared<const Coordinates>(
            coordinates_at(call.positions, axis_count(turn.axis), coordinate));
        return own;
      });
}

void Builder::rotation(Rotation rotation, const Source& of_queries, const Source& of_keys) {
  fixed_rotation([turn = std::move(rotation), q = of_queries.index_,
                  k = of_keys.index_](const PartCall& call) {
    Rotation own = turn;
    own.coordinates = std::make_shared<const Coordinates>(
        coordinates_given(call.parameters[q], call.parameters[k]));
    return own;
  });
}

void Builder::rotation(Rotation rotation, const Source& head_frequency,
                       const CoordinateOf& coordinate) {
  const SourceReader numbers(head_frequency);
  recipe_.add(
      &Terms::rotations, &TermGradients::rotations,
      [=, turn = std::move(rotation)](const PartCall& call) {
        Rotation own = turn;
        own.head_frequency = numbers.read(call);
        own.coordinates = std::make_shared<const Coordinates>(
            coordinates_at(call.positions, own.head_frequency.view.shape[0], coordinate));
        return own;
      },
      [=](const PartCall& call, const TermGradients::Turns& own, ParameterSums& sums) {
        numbers.add_gradient(call, own.head_frequency, sums);
      });
}

void Builder::rotation(Rotation rotation, const Source& q_cos, const Source& q_sin,
                       const Source& k_cos, const Source& k_sin) {
  std::vector<SourceReader> readers;
  for (Source source : {q_cos, q_sin, k_cos, k_sin}) {
    source.axes_.insert(source.axes_.begin() + 1, -1);  // of heads
    readers.emplace_back(source);
  }
  recipe_.add(
      &Terms::rotations, &TermGradients::rotations,
      [=, turn = std::move(rotation)](const PartCall& call) {
        Rotation made = turn;
        Rotation::Tables& tables = made.tables;
        size_t n = 0;
        for (TermData* data : {&tables.q_cos, &tables.q_sin, &tables.k_cos, &tables.k_sin}) {
          *data = readers[n++].read(call);
          data->view.shape[1] = table_heads(call.sizes);
          data->view.strides[1] = 0;
        }
        return made;
      },
      [=, first = q_cos.index_](const PartCall& call, const TermGradients::Turns& own,
                                ParameterSums& sums) {
        size_t n = 0;
        for (const auto* gradient : {&own.q_cos, &own.q_sin, &own.k_cos, &own.k_sin}) {
          readers[n++].add_gradient(
              call,
              sum_of_heads(*gradient, call.parameters[first].shape[0], table_heads(call.sizes)),
              sums);
        }
      });
}

void Builder::rotation(std::function<Rotation(int64_t)> of_length,
                       const std::optional<int64_t>& length) {
  if (length) return rotation(of_length(*length));
  recipe_.reads_length = true;
  fixed_rotation([of_length = std::move(of_length)](const PartCall& call) {
    return of_length(call.sizes.length);
  });
}

void Builder::fixed_rotation(const std::function<Rotation(const PartCall&)>& of_call) {
  recipe_.add(&Terms::rotations, &TermGradients::rotations, of_call,
              [](const PartCall&, const TermGradients::Turns&, ParameterSums&) {});
}

}  // namespace relpos
