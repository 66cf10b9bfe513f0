#include "conventions/common.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>

#include "relpos/dense.h"

namespace relpos::conventions {
namespace {

constexpr double kLowest = -3e38;                         // masks of frameworks are lower or -inf
constexpr int64_t kLargestSize = (int64_t{1} << 48) - 2;  // of an option that a matrix tells

int64_t class_at(const Classes& classes, int64_t distance) {
  return classes[static_cast<size_t>(static_cast<int64_t>(classes.size() / 2) + distance)];
}

}  // namespace

OptionMap with_stand_ins(const Scheme& scheme, const OptionValues& given) {
  OptionValues complete = given;
  for (const OptionSpec& spec : scheme.options) {
    const auto same = [&](const auto& item) { return item.first == spec.name; };
    if (!spec.required || std::ranges::any_of(given, same)) continue;
    OptionValue stand_in = int64_t{1};
    if (spec.type == OptionType::kBool) stand_in = false;
    if (!spec.choices.empty()) stand_in = spec.choices.front();
    complete.emplace_back(spec.name, std::move(stand_in));
  }
  return make_options(scheme, complete);
}

void check_sizes(const char* scheme, const OptionMap& given,
                 const std::vector<const char*>& names) {
  for (const char* name : names) {
    check_value(!given.has(name) || given.integer(name) >= 1, scheme, ": ", name,
                ": expected at least 1, got ", given.has(name) ? given.integer(name) : 0);
  }
}

std::vector<Arrangement> arrangements(int64_t rows, int64_t columns, bool transposed) {
  std::vector<Arrangement> all;
  for (const bool turned : {false, true}) {
    if (turned && !transposed) continue;
    const int64_t behind = turned ? rows - columns : columns - rows;  // keys - queries
    const std::string text = turned ? "[key, query] (transposed)" : "[query, key]";
    if (behind > 0) all.push_back({text + ", q_offset " + std::to_string(behind), turned, behind});
    all.push_back({behind == 0 ? text : text + ", q_offset 0", turned, 0});
  }
  return all;
}

std::vector<std::pair<Arrangement, int64_t>> arrangements_by_zero(const TensorView& matrix) {
  std::vector<std::pair<Arrangement, int64_t>> found;
  if (matrix.rank != 2 || is_floating(matrix.dtype)) return found;
  for (Arrangement& arrangement : arrangements(matrix.shape[0], matrix.shape[1], false)) {
    const int64_t zero = matrix.load_int(matrix.offset({0, arrangement.q_offset}));
    if (zero >= 0 && zero <= kLargestSize) found.emplace_back(std::move(arrangement), zero);
  }
  return found;
}

Classes classes_of(const char* scheme, const OptionValues& options, int64_t reach) {
  const Scheme& found = *find_scheme(scheme);
  const Part part = make_part(found, with_stand_ins(found, options).items());
  const int64_t count = 2 * reach + 1;
  Classes classes(static_cast<size_t>(count));
  indices(part, {1, count, reach}, TensorView(classes.data(), DType::kInt64, {1, count}));
  return classes;
}

Expected on_pairs(const Arrangement& arrangement, Classes classes) {
  return [arrangement, classes = std::move(classes)](const std::vector<int64_t>& index) {
    const int64_t distance = arrangement.distance(index[0], index[1]);
    return ExpectedValue{static_cast<double>(class_at(classes, distance))};
  };
}

Expected constant_on_classes(const TensorView& bias, bool heads_last, bool apart,
                             const Arrangement& arrangement, const Classes& classes) {
  const size_t row = heads_last ? 0 : 1, head = heads_last ? 2 : 0;
  // For each head, the value of each class's first pair in the first column or row.
  std::vector<std::map<int64_t, double>> first(static_cast<size_t>(bias.shape[head]));
  const auto see = [&](int64_t i, int64_t j) {
    const int64_t of_pair = class_at(classes, arrangement.distance(i, j));
    for (size_t n = 0; n < first.size(); ++n) {
      const auto h = static_cast<int64_t>(n);
      const double x = heads_last ? bias.at({i, j, h}) : bias.at({h, i, j});
      if (x > kLowest) first[n].emplace(of_pair, x);
    }
  };
  for (int64_t i = 0; i < bias.shape[row]; ++i) see(i, 0);
  for (int64_t j = 0; j < bias.shape[row + 1]; ++j) see(0, j);
  const auto differ = [&](int64_t left, int64_t right) {
    return left == right || std::ranges::any_of(first, [&](const auto& values) {
             const auto a = values.find(left), b = values.find(right);
             return a == values.end() || b == values.end() || a->second != b->second;
           });
  };
  for (size_t n = 1; apart && n < classes.size(); ++n) {
    if (!differ(classes[n - 1], classes[n])) return {};
  }
  return [=, first = std::move(first)](const std::vector<int64_t>& index) {
    const auto& known = first[static_cast<size_t>(index[head])];
    const int64_t distance = arrangement.distance(index[row], index[row + 1]);
    const auto found = known.find(class_at(classes, distance));
    const double none = std::numeric_limits<double>::quiet_NaN();  // differs from everything
    return ExpectedValue{found == known.end() ? none : found->second};
  };
}

TensorView transposed(TensorView matrix) {
  const auto last = static_cast<size_t>(matrix.rank - 1);
  std::swap(matrix.shape[last - 1], matrix.shape[last]);
  std::swap(matrix.strides[last - 1], matrix.strides[last]);
  return matrix;
}

std::vector<Table> tables(const CheckedTensor& tensor, const std::string& rows,
                          const std::string& columns) {
  const int rank = tensor.values.rank;
  if (rank != 2 && rank != 3) return {};
  const int64_t heads = rank == 3 ? tensor.size(0) : 0;
  const std::string start = rank == 3 ? "table [heads, " : "table [";
  return {{start + rows + ", " + columns + "], ", "", false, tensor.values, heads, tensor.size(-2),
           tensor.size(-1)},
          {start + columns + ", " + rows + "] (transposed), ", "transpose it first; ", true,
           transposed(tensor.values), heads, tensor.size(-1), tensor.size(-2)}};
}

std::string short_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

}  // namespace relpos::conventions
