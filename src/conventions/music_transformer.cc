#include "conventions/common.h"

namespace relpos::conventions {
namespace {

std::vector<Convention> of_tables(const CheckedTensor& tensor) {
  const bool known = tensor.given.has("max_length") || tensor.given.has("head_dim");
  std::vector<Convention> found;
  for (const Table& table : tables(tensor, "rows", "head_dim")) {
    // Any number of rows is a table, so that sizes alone never say transposed.
    if ((table.transposed && !known) || !tensor.agrees({{"heads", table.heads}})) continue;
    for (const bool both : {false, true}) {
      if (both && table.rows % 2 == 0) continue;
      OptionValues options = {{"max_length", both ? (table.rows + 1) / 2 : table.rows},
                              {"head_dim", table.columns}};
      if (table.heads > 0) options.emplace_back("heads", table.heads);
      options.emplace_back("bidirectional", both);
      const std::string text = table.text + (both ? "two directions, " : "the past alone, ");
      found.push_back(
          {text + "farthest past first",
           options,
           {},
           table.note + "the order of tensor2tensor and the paper; values cannot tell"});
      found.push_back({text + (both ? "farthest future first" : "distance 0 first"),
                       options,
                       {},
                       table.note + "flip the rows first; values cannot tell",
                       /*expressible=*/false});
    }
  }
  return found;
}

std::vector<Convention> of(const CheckedTensor& tensor) {
  if (!tensor.is_integer()) return of_tables(tensor);
  std::vector<Convention> found;
  for (const auto& [arrangement, zero] : arrangements_by_zero(tensor.values)) {
    for (const bool both : {false, true}) {
      OptionValues options = {{"max_length", zero + 1}, {"bidirectional", both}};
      const int64_t reach = tensor.size(0) + tensor.size(1);
      const Classes classes = classes_of("music_transformer", options, reach);
      found.push_back({"rows " + arrangement.text +
                           (both ? ", two directions" : ", the past alone") + ", -1 for none",
                       std::move(options), on_pairs(arrangement, classes)});
    }
  }
  return found;
}

}  // namespace

Conventions music_transformer() {
  return {{"Er", "key_relative_embeddings"},
          "table [(heads,) max_length, head_dim], 2 max_length - 1 rows for two directions; "
          "integer rows [Lq, Lk]",
          of};
}

}  // namespace relpos::conventions
