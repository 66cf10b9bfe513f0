// What of a part's terms a dense form shows: a bias of every pair, or rows of tables.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "binding/bound_part.h"

namespace relpos {

// The distance of a pair by which a term is read.
template <typename Term>
int64_t delta_of(const Term& term, const GridPositions& at, int64_t i, int64_t j) {
  if (term.coordinates == nullptr) return at.delta(i, j);
  return term.coordinates->key(term.axis, 0, j) - term.coordinates->query(term.axis, 0, i);
}

// A table whose rows pairs read.
struct ReadTable {
  const ClassMap* map;
  const TermData* table;  // [M, r] or [H, M, r]
  const Coordinates* coordinates = nullptr;
  int axis = 0;
};

// A bias of every head and pair, or a row of every pair: the sum of those of some tables.
struct DenseForm {
  const std::vector<DistanceBias>* biases = nullptr;  // null: rows
  const std::vector<KeyBias>* key_biases = nullptr;   // beside biases
  std::vector<ReadTable> tables;                      // of rows
  int64_t heads = 0;                                  // 0: rows that all heads share
  int64_t columns = 0;                                // of rows

  std::vector<int64_t> shape(const Grid& grid) const {
    std::vector<int64_t> dims{grid.queries, grid.keys};
    if (heads > 0 || biases != nullptr) dims.insert(dims.begin(), heads);
    if (biases == nullptr) dims.push_back(columns);
    return dims;
  }
};

// Throws Error where the terms have no form of the kind that `which`, "key" or "value", names.
DenseForm find_form(const Part& part, const Terms& terms, const Grid& grid, std::string_view which);

// The table whose rows the pairs read: of biases, else of rows, columns or values.
std::optional<ReadTable> first_table(const Terms& terms);

}  // namespace relpos
