#include <algorithm>
#include <cmath>

#include "conventions/common.h"

namespace relpos::conventions {
namespace {

// Buckets and max_distance of published models (T5 and its kin, LayoutLM's two axes, WavLM,
// CPM-Ant), and of the notebooks.
constexpr std::pair<int64_t, int64_t> kSizes[] = {
    {32, 128}, {64, 256}, {320, 800}, {512, 2048}, {6, 20}};

bool is_published(int64_t buckets) {
  return buckets >= 32 &&
         std::ranges::any_of(kSizes, [&](const auto& size) { return size.first == buckets; });
}

const char* directions(bool both) { return both ? "two directions" : "one direction"; }

// The sizes and directions left open.
std::vector<OptionValues> open_options(const CheckedTensor& tensor) {
  std::vector<OptionValues> open;
  const auto add = [&](int64_t buckets, int64_t max_distance) {
    for (const bool both : {true, false}) {
      const OptionValues options = {
          {"buckets", buckets}, {"max_distance", max_distance}, {"bidirectional", both}};
      if (tensor.agrees(options) && (!both || buckets % 2 == 0)) open.push_back(options);
    }
  };
  for (const auto& [buckets, max_distance] : kSizes) add(buckets, max_distance);
  const auto given = [&](const char* name, int64_t otherwise) {
    return tensor.given.has(name) ? tensor.given.integer(name) : otherwise;
  };
  if (open.empty()) add(given("buckets", 32), given("max_distance", 128));
  return open;
}

// mean |x[i + 1] - x[i]| / mean |x[i + n / 2] - x[i]| along the rows of a matrix: small where
// neighbours are alike, 1 for noise.
double roughness(const TensorView& matrix) {
  const int64_t rows = matrix.shape[0], columns = matrix.shape[1];
  const auto mean_step = [&](int64_t step) {
    double sum = 0.0;
    for (int64_t i = 0; i + step < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        sum += std::abs(matrix.at({i + step, j}) - matrix.at({i, j}));
      }
    }
    return sum / static_cast<double>((rows - step) * columns);
  };
  if (rows < 4) return 1.0;
  const double far = mean_step(rows / 2);
  return far > 0 ? mean_step(1) / far : 1.0;
}

// The evidence for one direction or two in a learned table.
std::string direction_note(const std::string& name, int64_t buckets, bool both) {
  const bool encoder = name.find("encoder") != std::string::npos;
  const bool decoder = name.find("decoder") != std::string::npos;
  std::string note;
  if (encoder != decoder) {
    note = encoder ? "its name says encoder" : "its name says decoder";
    note += ", T5's have ";
    note += directions(encoder);
    note += "; ";
  }
  note += both ? "no pair reads row " + std::to_string(buckets / 2) : "every row is read";
  return note + "; values cannot tell, nor max_distance (T5: 128): see the model's config";
}

std::vector<Convention> of_tables(const CheckedTensor& tensor) {
  const bool known = tensor.given.has("buckets") || tensor.given.has("heads");
  const bool told = !known && is_published(tensor.size(0)) != is_published(tensor.size(1));
  const bool decoder = tensor.name.find("decoder") != std::string::npos;
  std::vector<Convention> found;
  for (const Table& table : tables(tensor, "buckets", "heads")) {
    const int64_t buckets = table.rows;
    if (buckets < 2 || (told && !is_published(buckets))) continue;
    for (const bool both : {!decoder, decoder}) {
      if (both && buckets % 2 != 0) continue;
      std::string note = table.note + direction_note(tensor.name, buckets, both);
      if (!known && !told) {
        note += "; neighbours differ by " + short_number(roughness(table.values)) +
                " of what far ones do along this axis, by " +
                short_number(roughness(transposed(table.values))) +
                " along the other: buckets are the smooth axis of a trained table";
      }
      found.push_back(
          {(table.transposed ? "table [heads, buckets] (transposed: mesh, t5x), " : table.text) +
               directions(both),
           {{"heads", table.columns}, {"buckets", buckets}, {"bidirectional", both}},
           {},
           std::move(note)});
    }
  }
  return found;
}

// Bucket numbers [Lq, Lk], or a bias [heads, Lq, Lk] (heads_last: [Lq, Lk, heads]) on them.
void add_pairs(const CheckedTensor& tensor, const std::string& what, bool heads_last,
               std::vector<Convention>& found) {
  const bool whole = tensor.is_integer();
  const int first = whole || heads_last ? 0 : 1;
  const int64_t rows = tensor.size(first), columns = tensor.size(first + 1);
  std::vector<Classes> seen;
  for (OptionValues& options : open_options(tensor)) {
    const Classes classes = classes_of("t5", options, rows + columns);
    if (std::ranges::find(seen, classes) != seen.end()) continue;
    seen.push_back(classes);
    const bool both = std::get<bool>(options.back().second);
    if (!whole) options.insert(options.begin(), {"heads", tensor.size(heads_last ? 2 : 0)});
    for (const Arrangement& arrangement : arrangements(rows, columns, true)) {
      Expected expected =
          whole ? on_pairs(arrangement, classes)
                : constant_on_classes(tensor.values, heads_last, true, arrangement, classes);
      if (!expected) continue;
      found.push_back({what + arrangement.text + ", " + directions(both), options,
                       std::move(expected), arrangement.note()});
    }
  }
}

std::vector<Convention> of(const CheckedTensor& tensor) {
  const int rank = tensor.values.rank;
  if (rank == 2 && !tensor.is_integer()) return of_tables(tensor);
  std::vector<Convention> found;
  if (rank == 2) add_pairs(tensor, "bucket numbers ", false, found);
  if (rank == 3 && !tensor.is_integer()) {
    add_pairs(tensor, "bias, heads first, ", false, found);
    add_pairs(tensor, "bias, heads last, ", true, found);
  }
  return found;
}

}  // namespace

Conventions t5() {
  return {{"relative_attention_bias.weight", "rel_embedding", "relative_attention_bias",
           "relative_position_bias.weight", "relative_attention_embedding.weight",
           "rel_pos_embeddings.weight"},
          "table [buckets, heads] or its transpose; integer bucket numbers [Lq, Lk]; bias "
          "[heads, Lq, Lk] or [Lq, Lk, heads]",
          of};
}

}  // namespace relpos::conventions
