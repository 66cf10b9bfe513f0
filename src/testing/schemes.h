// What the tests of schemes share: a scheme with parameters of its own, and terms evaluated plainly.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "binding/recipe.h"
#include "kernels/problem.h"
#include "relpos/dense.h"
#include "relpos/error.h"

namespace relpos::plain {

// A scheme with options and random float64 parameters, all of which want a gradient.
class Made {
 public:
  Made(std::string_view name, const OptionValues& given)
      : part_(make_part(*find_scheme(name), given)) {
    std::mt19937_64 random(7);
    std::normal_distribution<double> normal;
    for (const ParameterSpec& spec : specs()) {
      tensors_.emplace_back(DType::kFloat64, spec.shape);
      part_.parameters.push_back(tensors_.back().view());
      for (int64_t i = 0; i < parameters().back().numel(); ++i) {
        parameters().back().store(i, normal(random));
      }
    }
    wants_.assign(specs().size(), true);
  }
  Made(const Made&) = delete;
  Made& operator=(const Made&) = delete;

  const OptionMap& options() const { return part_.options(); }
  const std::vector<TensorView>& parameters() const { return part_.parameters; }
  const std::vector<ParameterSpec>& specs() const { return part_.specs(); }
  Terms lower(int64_t heads = 0, int64_t head_dim = 0, int64_t value_dim = 0) const {
    return part_.recipe->bind({sizes(heads, head_dim, value_dim), parameters(), wants_});
  }
  // At these positions.
  Terms lower(const TokenPositions& at) const {
    return part_.recipe->bind({sizes(0, 0, 0), parameters(), wants_, &at});
  }
  // With these parameters frozen.
  Terms lower(int64_t heads, const std::vector<bool>& wants) const {
    return part_.recipe->bind({sizes(heads, 0, 0), parameters(), wants});
  }
  // Gradients of the parameters for those of the terms.
  ParameterSums pull_back(const TermGradients& gradients) const {
    ParameterSums sums;
    for (const TensorView& view : parameters()) {
      sums.emplace_back(static_cast<size_t>(view.numel()), 0.0);
    }
    part_.recipe->pull_back({sizes(0, 0, 0), parameters(), wants_}, gradients, sums);
    return sums;
  }
  std::function<int64_t(int64_t)> place() const { return part_.recipe->place; }
  // The distances of a call, where the scheme computes a table for them.
  std::pair<int64_t, int64_t> distances{0, -1};

 private:
  CallSizes sizes(int64_t heads, int64_t head_dim, int64_t value_dim) const {
    CallSizes sizes;
    sizes.heads = heads;
    sizes.head_dim = head_dim;
    sizes.value_dim = value_dim;
    std::tie(sizes.first_distance, sizes.last_distance) = distances;
    return sizes;
  }

  Part part_;
  std::vector<Tensor> tensors_;
  std::vector<bool> wants_;
};

// A call of one batch row in which queries and keys have the same integers, [.., L], at 0, 1, ...
class WithTokens {
 public:
  WithTokens(std::string_view name, const OptionValues& given, const std::vector<int64_t>& shape,
             const std::vector<int64_t>& numbers)
      : part_(make_part(*find_scheme(name), given)) {
    const int64_t tokens = shape.back();
    std::mt19937_64 random(7);
    std::normal_distribution<double> normal;
    for (const ParameterSpec& spec : part_.specs()) {
      tensors_.emplace_back(spec.input ? DType::kInt64 : DType::kFloat64,
                            spec.input ? shape : spec.shape);
      part_.parameters.push_back(tensors_.back().view());
      if (spec.input) {
        std::copy(numbers.begin(), numbers.end(), tensors_.back().data<int64_t>());
      } else {
        std::generate_n(tensors_.back().data<double>(), part_.parameters.back().numel(),
                        [&] { return normal(random); });
      }
    }
    at_.consecutive = false;
    at_.queries = at_.keys = tokens;
    const auto& place = part_.recipe->place;
    const auto& place_key = part_.recipe->place_key;
    for (int64_t t = 0; t < tokens; ++t) {
      at_.q.push_back(place ? place(t) : t);
      at_.k.push_back(place_key ? place_key(t) : at_.q.back());
    }
    const auto [low_q, high_q] = std::minmax_element(at_.q.begin(), at_.q.end());
    const auto [low_k, high_k] = std::minmax_element(at_.k.begin(), at_.k.end());
    const CallSizes sizes{.batch = 1,
                          .queries = tokens,
                          .keys = tokens,
                          .first_distance = *low_k - *high_q,
                          .last_distance = *high_k - *low_q};
    terms = part_.recipe->bind(
        {sizes, part_.parameters, std::vector<bool>(tensors_.size(), false), &at_});
  }
  WithTokens(const WithTokens&) = delete;
  WithTokens& operator=(const WithTokens&) = delete;

  const TensorView& parameter(size_t n) const { return part_.parameters[n]; }
  // The class of query i and key j in a bias or a row table; kNone: none.
  template <typename Term>
  int64_t row(const Term& term, int64_t i, int64_t j) const {
    if (term.coordinates == nullptr) return at(term, at_.key(0, j) - at_.query(0, i));
    return at(term,
              term.coordinates->key(term.axis, 0, j) - term.coordinates->query(term.axis, 0, i));
  }

  Terms terms;

 private:
  static int64_t at(const DistanceBias& term, int64_t delta) { return (*term.map)(delta); }
  static int64_t at(const RowTable& term, int64_t delta) { return term.map(delta); }

  Part part_;
  std::vector<Tensor> tensors_;
  TokenPositions at_;
};

// Any fixed numbers that differ from each other: the gradient of a loss by element c of pair (h, i, j).
inline double weight(int64_t h, int64_t i, int64_t j, int64_t c = 0) {
  return std::sin(static_cast<double>(1 + 3 * h + 7 * i + 13 * j + 29 * c));
}

// Element (h, m, c) of a table [M, r] or [H, M, r], multiplier included.
inline double element(const TermData& table, int64_t h, int64_t m, int64_t c) {
  return table.multiplier *
         (table.view.rank == 3 ? table.view.at({h, m, c}) : table.view.at({m, c}));
}

// b[h, m(delta)] + the linear part.
inline double bias(const DistanceBias& term, int64_t h, int64_t delta) {
  double sum = 0;
  if (term.map && (*term.map)(delta) != ClassMap::kNone) {
    sum += term.table.multiplier * term.table.view.at({h, (*term.map)(delta)});
  }
  if (term.slopes.view.given()) {
    sum += term.slopes.view.at({0, h}) * static_cast<double>(std::min<int64_t>(delta, 0)) +
           term.slopes.view.at({1, h}) * static_cast<double>(std::max<int64_t>(delta, 0));
  }
  return sum;
}

// Gradients of sum_{h,i,j,c} weight(h, i, j, c) * (every bias and every row of the terms).
inline TermGradients weighted_gradients(const Terms& terms, int64_t heads, const Grid& grid) {
  TermGradients sums = TermGradients::zeros(terms);
  const auto visit = [&](auto&& pair) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < grid.queries; ++i) {
        for (int64_t j = 0; j < grid.keys; ++j) pair(h, i, j, j - i - grid.q_offset);
      }
    }
  };
  for (size_t n = 0; n < terms.biases.size(); ++n) {
    const DistanceBias& term = terms.biases[n];
    visit([&](int64_t h, int64_t i, int64_t j, int64_t delta) {
      if (term.map && (*term.map)(delta) != ClassMap::kNone) {
        const int64_t classes = term.table.view.shape[1];
        sums.biases[n].table[static_cast<size_t>(h * classes + (*term.map)(delta))] +=
            weight(h, i, j) * term.table.multiplier;
      }
      if (term.slopes.view.given()) {
        const size_t side = delta < 0 ? 0 : 1;
        sums.biases[n].slopes[side * static_cast<size_t>(heads) + static_cast<size_t>(h)] +=
            weight(h, i, j) * static_cast<double>(delta);
      }
    });
  }
  const auto rows = [&](const ClassMap& map, const TermData& table, std::vector<double>& into) {
    visit([&](int64_t h, int64_t i, int64_t j, int64_t delta) {
      const int64_t m = map(delta);
      if (m == ClassMap::kNone) return;
      const bool per_head = table.view.rank == 3;
      const int64_t classes = table.view.shape[per_head ? 1 : 0];
      const int64_t columns = table.view.shape[per_head ? 2 : 1];
      for (int64_t c = 0; c < columns; ++c) {
        into[static_cast<size_t>(((per_head ? h : 0) * classes + m) * columns + c)] +=
            weight(h, i, j, c) * table.multiplier;
      }
    });
  };
  for (size_t n = 0; n < terms.row_tables.size(); ++n) {
    rows(terms.row_tables[n].map, terms.row_tables[n].table, sums.row_tables[n].table);
  }
  for (size_t n = 0; n < terms.value_tables.size(); ++n) {
    rows(terms.value_tables[n].map, terms.value_tables[n].table, sums.value_tables[n].table);
  }
  return sums;
}

// The text of the Error that a call throws; empty where it throws none.
template <typename Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace relpos::plain
