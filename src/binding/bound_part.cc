#include "binding/bound_part.h"

#include <algorithm>
#include <tuple>

#include "binding/parts.h"

namespace relpos {

TensorView stand_in(const ParameterSpec& spec, const std::vector<int64_t>& shape,
                    std::vector<double>& memory) {
  const int64_t count = checked_numel(shape, spec.name.c_str());
  const std::vector<double>& values = spec.init.values;
  const bool each = spec.init.kind == Init::Kind::kValues && values.size() > 1;
  if (each && static_cast<int64_t>(values.size()) == count) {
    memory = values;
    return TensorView(memory.data(), DType::kFloat64, shape);
  }
  const bool known = spec.init.kind == Init::Kind::kValues && !values.empty();
  memory.assign(1, known ? values[0] : 0.0);
  return TensorView(memory.data(), DType::kFloat64, shape, std::vector<int64_t>(shape.size(), 0));
}

GridPositions::GridPositions(const Part& part, const Grid& grid) : grid_(grid) {
  if (!part.recipe || !part.recipe->place) return;
  const Position alone{{part}};
  append_places(alone, Side::kQuery, grid.q_offset, grid.queries, "q_offset", q_);
  append_places(alone, Side::kKey, 0, grid.keys, "keys", k_);
}

std::pair<int64_t, int64_t> GridPositions::distances() const {
  if (grid_.queries == 0 || grid_.keys == 0) return {0, -1};
  if (q_.empty()) return {delta(grid_.queries - 1, 0), delta(0, grid_.keys - 1)};
  const auto [q_low, q_high] = std::minmax_element(q_.begin(), q_.end());
  const auto [k_low, k_high] = std::minmax_element(k_.begin(), k_.end());
  return {*k_low - *q_high, *k_high - *q_low};
}

TokenPositions GridPositions::tokens() const {
  TokenPositions found;
  found.queries = grid_.queries;
  found.keys = grid_.keys;
  found.consecutive = q_.empty() && k_.empty();
  if (found.consecutive) {
    found.q = {query(0)};
    found.k = {key(0)};
    return found;
  }
  for (int64_t i = 0; i < grid_.queries; ++i) found.q.push_back(query(i));
  for (int64_t j = 0; j < grid_.keys; ++j) found.k.push_back(key(j));
  return found;
}

CallSizes GridPositions::sizes() const {
  CallSizes sizes;
  std::tie(sizes.first_distance, sizes.last_distance) = distances();
  if (grid_.queries > 0) {
    sizes.last_query =
        q_.empty() ? query(grid_.queries - 1) : *std::max_element(q_.begin(), q_.end());
    sizes.length = std::max<int64_t>(sizes.last_query + 1, 0);
  }
  if (grid_.keys > 0) {
    const int64_t last = k_.empty() ? key(grid_.keys - 1) : *std::max_element(k_.begin(), k_.end());
    sizes.length = std::max(sizes.length, last + 1);
  }
  return sizes;
}

BoundPart::BoundPart(const Part& part, const CallSizes& sizes, std::vector<bool> wants,
                     const TokenPositions* positions)
    : part_(part), sizes_(sizes), parameters_(part.parameters), wants_(std::move(wants)) {
  check_parameters(part, sizes_);
  wants_.resize(part.parameters.size(), false);
  bind(positions);
}

BoundPart::BoundPart(const Part& part, const CallSizes& sizes, const TokenPositions* positions)
    : part_(part), sizes_(sizes), wants_(part.specs().size(), false) {
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
      parameters_.push_back(stand_in(specs[n], InputSizes().example(specs[n]), stand_ins_[n]));
    }
  }
  bind(positions);
}

void BoundPart::bind(const TokenPositions* positions) {
  terms_ = part_.recipe->bind({sizes_, parameters_, wants_, positions});
}

void BoundPart::pull_back(const TermGradients& gradients, ParameterSums& sums) const {
  part_.recipe->pull_back({sizes_, parameters_, wants_}, gradients, sums);
}

}  // namespace relpos
