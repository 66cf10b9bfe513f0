#include <algorithm>

#include "conventions/common.h"

namespace relpos::conventions {
namespace {

constexpr const char* kName = "bias_rpe";

bool all_zero(const TensorView& matrix, int64_t first, int64_t last) {
  for (int64_t row = 0; row < matrix.shape[0]; ++row) {
    for (int64_t column = first; column < last; ++column) {
      if (matrix.at({row, column}) != 0) return false;
    }
  }
  return true;
}

// Causal training leaves the initial zeros of the side that no pair reads.
std::string side_note(const Table& table, bool mirrored) {
  const int64_t middle = table.columns / 2;
  const bool first = all_zero(table.values, 0, middle);
  const bool last = all_zero(table.values, middle + 1, table.columns);
  if (first == last) return "; values cannot tell";
  return first != mirrored ? "; the future's numbers are all 0, as causal training leaves them"
                           : "; but then the past was never trained: its numbers are all 0";
}

std::vector<Convention> of_tables(const CheckedTensor& tensor) {
  std::vector<Convention> found;
  for (const Table& table : tables(tensor, "heads", "2 max_distance - 1")) {
    if (table.columns % 2 == 0) continue;
    const OptionValues options = {{"heads", table.rows}, {"max_distance", (table.columns + 1) / 2}};
    found.push_back({table.text + "farthest future first (query - key)",
                     options,
                     {},
                     table.note + "the order here" + side_note(table, false)});
    found.push_back({table.text + "farthest past first (key - query)",
                     options,
                     {},
                     table.note + "flip the distances first" + side_note(table, true),
                     /*expressible=*/false});
  }
  return found;
}

std::vector<Convention> of_biases(const CheckedTensor& tensor) {
  const int64_t rows = tensor.size(1), columns = tensor.size(2);
  const bool known = tensor.given.has("max_distance");
  const int64_t reach = known ? tensor.given.integer("max_distance") : std::max(rows, columns);
  const Classes classes = classes_of(kName, {{"max_distance", reach}}, rows + columns);
  std::vector<Convention> found;
  for (const Arrangement& arrangement : arrangements(rows, columns, false)) {
    found.push_back({"bias [heads, ...], one number for each distance" +
                         (known ? ", clipped, " + arrangement.text : std::string()),
                     {{"heads", tensor.size(0)}, {"max_distance", reach}},
                     constant_on_classes(tensor.values, false, false, arrangement, classes),
                     "whether it is transposed, a bias of learned numbers does not tell"});
    if (!known) break;  // unclipped, every alignment is one number for each distance
  }
  return found;
}

std::vector<Convention> of(const CheckedTensor& tensor) {
  check_sizes(kName, tensor.given, {"max_distance"});
  if (!tensor.is_integer() && tensor.values.rank == 3) return of_biases(tensor);
  if (!tensor.is_integer() && tensor.values.rank == 2) return of_tables(tensor);
  std::vector<Convention> found;
  for (const auto& [arrangement, zero] : arrangements_by_zero(tensor.values)) {
    const OptionValues options = {{"max_distance", zero + 1}};
    Classes classes = classes_of(kName, options, tensor.size(0) + tensor.size(1));
    const std::string text = "classes " + arrangement.text;
    found.push_back({text + ", query - key", options, on_pairs(arrangement, classes)});
    std::ranges::reverse(classes);
    found.push_back({text + ", key - query", options, on_pairs(arrangement, classes),
                     "the table's order is the other one: flip it first", /*expressible=*/false});
  }
  return found;
}

}  // namespace

Conventions bias_rpe() {
  return {{"biases"},
          "table [heads, 2 max_distance - 1] or its transpose; integer classes [Lq, Lk]; bias "
          "[heads, Lq, Lk]",
          of};
}

}  // namespace relpos::conventions
