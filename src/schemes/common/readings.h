// What the conventions of several schemes share: how a matrix lies on positions, classes of
// distances, statistics of learned tables.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "relpos/scheme.h"

namespace relpos::common {

using Expected = std::function<Golden(const std::vector<int64_t>&)>;

// Whether the caller left the option open or gave this value.
bool agrees(const OptionMap& given, const char* name, int64_t value);
bool agrees(const OptionMap& given, const char* name, bool value);
bool agrees(const OptionMap& given, const char* name, const char* value);

bool is_integer(const Specimen& specimen);
// The size of an axis, from the last one on where negative.
int64_t size(const Specimen& specimen, int axis);

// How a matrix of pairs lies on positions.
struct Lay {
  std::string text;  // "[query, key]", "[key, query] (transposed), q_offset 5"
  bool transposed = false;
  int64_t q_offset = 0;

  // Of row i and column j.
  int64_t delta(int64_t i, int64_t j) const {
    return transposed ? i - j - q_offset : j - i - q_offset;
  }
};

// Both starts at 0, and where there are more keys than queries also both ends aligned; each as
// [query, key] and, with `transposed`, as [key, query].
std::vector<Lay> lays(int64_t rows, int64_t columns, bool transposed);

// "transpose it first" where that is so.
std::string note_of(const Lay& lay);

// Classes of a matrix [rows, columns] of pairs.
Expected classes(const Lay& lay, ClassMap map);

// Values of a bias [heads, rows, columns] (heads_last: [rows, columns, heads]) that depend on the
// class of the distance alone: each pair is expected to have what the first one of its class in the
// first row or column has.
Expected constant_on_classes(const TensorView& bias, bool heads_last, const Lay& lay,
                             const ClassMap& map);

// Whether some head tells each class from that of the next distance. A bias is constant on the classes
// of every finer map, too; those it does not tell apart.
bool tells_classes_apart(const TensorView& bias, bool heads_last, const Lay& lay,
                         const ClassMap& map);

// The lays, none transposed, of an integer tensor that holds a size at distance 0, each with that
// size; none of another rank than 2.
std::vector<std::pair<Lay, int64_t>> lays_by_zero(const TensorView& matrix);

// mean |x[i + 1] - x[i]| / mean |x[i + n / 2] - x[i]| along an axis of a matrix: small where
// neighbours are alike, 1 for noise.
double roughness(const TensorView& matrix, int axis);
// The mean magnitude of lines first .. last - 1 of an axis of a matrix.
double mean_magnitude(const TensorView& matrix, int axis, int64_t first, int64_t last);

// Three significant digits.
std::string short_number(double value);

}  // namespace relpos::common
