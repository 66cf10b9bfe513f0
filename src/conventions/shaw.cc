#include "conventions/common.h"

namespace relpos::conventions {
namespace {

constexpr int64_t kW2vBertPast = 64, kW2vBertFuture = 8;  // the distances of its rows

// The order of rows that the name of a tensor says; null where it says none.
const char* order_of(const std::string& name) {
  if (name.find("distance_embedding") != std::string::npos) return "query-key";  // BERT's own
  if (name.find("relative_positions_") != std::string::npos) return "key-query";
  return nullptr;
}

std::vector<Convention> of_tables(const CheckedTensor& tensor) {
  const bool known = tensor.given.has("max_distance") || tensor.given.has("head_dim");
  const char* named = order_of(tensor.name);
  const std::string first = named == nullptr ? "key-query" : named;
  const std::string second = first == "key-query" ? "query-key" : "key-query";
  std::vector<Convention> found;
  for (const Table& table : tables(tensor, "2 max_distance + 1", "head_dim")) {
    // Without either, heads of an even size are likelier than tables of an even number of rows.
    if (table.rows % 2 == 0 || (!known && table.transposed && table.columns % 2 != 0) ||
        !tensor.agrees({{"heads", table.heads}})) {
      continue;
    }
    OptionValues sizes = {{"max_distance", table.rows / 2}, {"head_dim", table.columns}};
    if (!tensor.agrees(sizes)) continue;
    if (table.heads > 0) sizes.emplace_back("heads", table.heads);
    for (const std::string& order : {first, second}) {
      OptionValues options = sizes;
      options.emplace_back("distance", order);
      found.push_back(
          {table.text + (order == "key-query" ? "farthest past first (key - query)"
                                              : "farthest future first (query - key)"),
           std::move(options),
           {},
           table.note + (named == nullptr ? "values cannot tell the order of the rows"
                         : order == first
                             ? "the order of code that has tensors of this name"
                             : "but code with tensors of this name has the other order")});
    }
    if (table.rows == kW2vBertPast + kW2vBertFuture + 1 && !table.transposed) {
      found.push_back(
          {"table of distances -64 to 8 (w2v-BERT 2.0, Seamless)",
           {{"max_distance", kW2vBertPast}, {"right", kW2vBertFuture}, {"head_dim", table.columns}},
           {},
           "if the model is one of these"});
    }
  }
  return found;
}

std::vector<Convention> of(const CheckedTensor& tensor) {
  if (!tensor.is_integer()) return of_tables(tensor);
  std::vector<Convention> found;
  for (const auto& [arrangement, zero] : arrangements_by_zero(tensor.values)) {
    for (const char* order : {"key-query", "query-key"}) {
      OptionValues options = {{"max_distance", zero}, {"distance", order}};
      const Classes classes = classes_of("shaw", options, tensor.size(0) + tensor.size(1));
      found.push_back({"rows " + arrangement.text + ", counted by " + order, std::move(options),
                       on_pairs(arrangement, classes)});
    }
  }
  return found;
}

}  // namespace

Conventions shaw() {
  return {{"key_table", "value_table", "relative_positions_keys/embeddings",
           "relative_positions_values/embeddings", "distance_embedding.weight", "embeddings_table"},
          "table [(heads,) 2 max_distance + 1, head_dim] or its transpose; integer rows [Lq, Lk]",
          of};
}

}  // namespace relpos::conventions
