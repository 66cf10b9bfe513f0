#include "schemes/common/readings.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "schemes/common/checks.h"

namespace relpos::common {

namespace {

constexpr double kLowest = -3e38;  // masks of frameworks are lower or -inf

double along(const TensorView& matrix, int axis, int64_t i, int64_t other) {
  return axis == 0 ? matrix.at({i, other}) : matrix.at({other, i});
}

// By head: the value of each class's first pair in the first column or row.
std::vector<std::map<int64_t, double>> first_of_classes(const TensorView& bias, bool heads_last,
                                                        const Lay& lay, const ClassMap& map) {
  const size_t row = heads_last ? 0 : 1, head = heads_last ? 2 : 0;
  std::vector<std::map<int64_t, double>> first(static_cast<size_t>(bias.shape[head]));
  const auto see = [&](int64_t i, int64_t j) {
    for (size_t n = 0; n < first.size(); ++n) {
      const auto h = static_cast<int64_t>(n);
      const double x = heads_last ? bias.at({i, j, h}) : bias.at({h, i, j});
      if (x > kLowest) first[n].emplace(map(lay.delta(i, j)), x);
    }
  };
  for (int64_t i = 0; i < bias.shape[row]; ++i) see(i, 0);
  for (int64_t j = 0; j < bias.shape[row + 1]; ++j) see(0, j);
  return first;
}

// The value at distance 0; none where no pair has it, or where it is no size.
std::optional<int64_t> class_of_zero(const TensorView& matrix, const Lay& lay) {
  const auto size = [](int64_t value) {
    return value >= 0 && value <= kLargestSize ? std::optional(value) : std::nullopt;
  };
  for (int64_t j = 0; j < matrix.shape[1]; ++j) {
    if (lay.delta(0, j) == 0) return size(matrix.load_int(matrix.offset({0, j})));
  }
  for (int64_t i = 0; i < matrix.shape[0]; ++i) {
    if (lay.delta(i, 0) == 0) return size(matrix.load_int(matrix.offset({i, 0})));
  }
  return std::nullopt;
}

}  // namespace

bool agrees(const OptionMap& given, const char* name, int64_t value) {
  return !given.has(name) || given.integer(name) == value;
}

bool agrees(const OptionMap& given, const char* name, bool value) {
  return !given.has(name) || given.flag(name) == value;
}

bool agrees(const OptionMap& given, const char* name, const char* value) {
  return !given.has(name) || given.text(name) == value;
}

bool is_integer(const Specimen& specimen) { return !is_floating(specimen.values.dtype); }

int64_t size(const Specimen& specimen, int axis) {
  return specimen.values.shape[static_cast<size_t>(axis < 0 ? specimen.values.rank + axis : axis)];
}

std::vector<Lay> lays(int64_t rows, int64_t columns, bool transposed) {
  std::vector<Lay> all;
  for (const bool turned : {false, true}) {
    if (turned && !transposed) continue;
    const int64_t queries = turned ? columns : rows, keys = turned ? rows : columns;
    const std::string text = turned ? "[key, query] (transposed)" : "[query, key]";
    if (queries == keys) {
      all.push_back({text, turned, 0});
      continue;
    }
    if (const int64_t behind = keys - queries; behind > 0) {
      all.push_back({text + ", q_offset " + std::to_string(behind), turned, behind});
    }
    all.push_back({text + ", q_offset 0", turned, 0});
  }
  return all;
}

std::string note_of(const Lay& lay) { return lay.transposed ? "transpose it first" : ""; }

Expected classes(const Lay& lay, ClassMap map) {
  return [lay, map = std::move(map)](const std::vector<int64_t>& index) {
    return Golden{static_cast<double>(map(lay.delta(index[0], index[1]))), 0.0};
  };
}

Expected constant_on_classes(const TensorView& bias, bool heads_last, const Lay& lay,
                             const ClassMap& map) {
  const size_t row = heads_last ? 0 : 1, head = heads_last ? 2 : 0;
  return [first = first_of_classes(bias, heads_last, lay, map), row, head, lay,
          map](const std::vector<int64_t>& index) {
    const auto& known = first[static_cast<size_t>(index[head])];
    const auto found = known.find(map(lay.delta(index[row], index[row + 1])));
    const double none = std::numeric_limits<double>::quiet_NaN();  // differs from everything
    return Golden{found == known.end() ? none : found->second, 0.0};
  };
}

bool tells_classes_apart(const TensorView& bias, bool heads_last, const Lay& lay,
                         const ClassMap& map) {
  const auto first = first_of_classes(bias, heads_last, lay, map);
  const auto differ = [&](int64_t left, int64_t right) {
    return std::ranges::any_of(first, [&](const auto& values) {
      const auto a = values.find(left), b = values.find(right);
      return a == values.end() || b == values.end() || a->second != b->second;
    });
  };
  const int64_t reach = bias.shape[heads_last ? 0 : 1] + bias.shape[heads_last ? 1 : 2];
  for (int64_t delta = -reach; delta < reach; ++delta) {
    const int64_t left = map(delta), right = map(delta + 1);
    if (left != right && !differ(left, right)) return false;
  }
  return true;
}

std::vector<std::pair<Lay, int64_t>> lays_by_zero(const TensorView& matrix) {
  std::vector<std::pair<Lay, int64_t>> found;
  if (matrix.rank != 2) return found;
  for (Lay& lay : lays(matrix.shape[0], matrix.shape[1], false)) {
    if (const auto zero = class_of_zero(matrix, lay)) found.emplace_back(std::move(lay), *zero);
  }
  return found;
}

double roughness(const TensorView& matrix, int axis) {
  const int64_t count = matrix.shape[static_cast<size_t>(axis)];
  const int64_t others = matrix.shape[static_cast<size_t>(1 - axis)];
  const auto mean_step = [&](int64_t step) {
    double sum = 0.0;
    for (int64_t i = 0; i + step < count; ++i) {
      for (int64_t o = 0; o < others; ++o) {
        sum += std::abs(along(matrix, axis, i + step, o) - along(matrix, axis, i, o));
      }
    }
    return sum / static_cast<double>((count - step) * others);
  };
  if (count < 4) return 1.0;
  const double far = mean_step(count / 2);
  return far > 0 ? mean_step(1) / far : 1.0;
}

double mean_magnitude(const TensorView& matrix, int axis, int64_t first, int64_t last) {
  const int64_t others = matrix.shape[static_cast<size_t>(1 - axis)];
  double sum = 0.0;
  for (int64_t i = first; i < last; ++i) {
    for (int64_t o = 0; o < others; ++o) sum += std::abs(along(matrix, axis, i, o));
  }
  return last > first ? sum / static_cast<double>((last - first) * others) : 0.0;
}

std::string short_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

}  // namespace relpos::common
