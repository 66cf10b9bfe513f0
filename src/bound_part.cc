#include "bound_part.h"

#include <algorithm>

#include "parts.h"

namespace relpos {
namespace {

// One number for all elements costs no memory of its size: strides of 0.
TensorView stand_in(const ParameterSpec& spec, std::vector<double>& memory) {
  const std::vector<int64_t> shape = InputSizes().shape(spec);
  const int64_t count = checked_numel(shape, spec.name.c_str());
  const std::vector<double>& values = spec.init.values;
  const bool each = spec.init.kind == Init::Kind::kValues && values.size() > 1;
  if (each && static_cast<int64_t>(values.size()) == count) {
    memory = values;
    return TensorView(memory.data(), DType::kFloat64, shape);
  }
  memory.assign(1, values.empty() ? 0.0 : values[0]);
  return TensorView(memory.data(), DType::kFloat64, shape, std::vector<int64_t>(shape.size(), 0));
}

}  // namespace

GridPositions::GridPositions(const Part& part, const Grid& grid) : grid_(grid) {
  if (!part.recipe || !part.recipe->place) return;
  const Position alone{{part}};
  append_places(alone, grid.q_offset, grid.queries, "q_offset", q_);
  append_places(alone, 0, grid.keys, "keys", k_);
}

std::pair<int64_t, int64_t> GridPositions::distances() const {
  if (grid_.queries == 0 || grid_.keys == 0) return {0, -1};
  if (q_.empty()) return {delta(grid_.queries - 1, 0), delta(0, grid_.keys - 1)};
  const auto [q_low, q_high] = std::minmax_element(q_.begin(), q_.end());
  const auto [k_low, k_high] = std::minmax_element(k_.begin(), k_.end());
  return {*k_low - *q_high, *k_high - *q_low};
}

BoundPart::BoundPart(const Part& part, std::pair<int64_t, int64_t> distances,
                     std::vector<bool> wants)
    : part_(part), parameters_(part.parameters), wants_(std::move(wants)) {
  sizes_.first_distance = distances.first;
  sizes_.last_distance = distances.second;
  check_parameters(part, sizes_);
  wants_.resize(part.parameters.size(), false);
  bind();
}

BoundPart::BoundPart(const Part& part, std::pair<int64_t, int64_t> distances, int64_t head_dim)
    : part_(part), wants_(part.specs().size(), false) {
  sizes_.first_distance = distances.first;
  sizes_.last_distance = distances.second;
  sizes_.head_dim = head_dim;
  const std::vector<ParameterSpec>& specs = part.specs();
  const bool complete =
      std::all_of(part.parameters.begin(), part.parameters.end(), [](const TensorView& view) {
        return view.given() && (view.data != nullptr || view.numel() == 0);
      });
  if (complete && part.parameters.size() == specs.size()) {
    check_parameters(part, sizes_);
    parameters_ = part.parameters;
  } else {
    stand_ins_.resize(specs.size());
    for (size_t n = 0; n < specs.size(); ++n) {
      parameters_.push_back(stand_in(specs[n], stand_ins_[n]));
    }
  }
  bind();
}

void BoundPart::bind() { terms_ = part_.recipe->bind({sizes_, parameters_, wants_}); }

void BoundPart::pull_back(const TermGradients& gradients, ParameterSums& sums) const {
  part_.recipe->pull_back({sizes_, parameters_, wants_}, gradients, sums);
}

}  // namespace relpos
