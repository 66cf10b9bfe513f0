#include "notebooks/common.h"

namespace relpos::notebooks {
namespace {

// The skew of the paper on Q Er^T of `length` queries, every product shown by its place 1, 2, ...
// in the matrix: above the diagonal S_rel holds 0 and then the next query's products, wrapped
// around.
void append_skew(std::vector<Step>& list, int64_t length, int64_t rows) {
  const auto add = [&](const char* name, int64_t height, int64_t width, auto cell) {
    list.push_back(matrix(name, Step::Kind::kInteger, height, width, cell));
  };
  const auto product = [&](int64_t i, int64_t j) {
    return j < length - rows ? 0 : i * length + j + 1;  // zero where the table has no row
  };
  const auto padded = [&](int64_t i, int64_t j) { return j == 0 ? 0 : product(i, j - 1); };
  const auto reshaped = [&](int64_t i, int64_t j) {
    const int64_t place = i * length + j;
    return padded(place / (length + 1), place % (length + 1));
  };
  const auto skewed = [&](int64_t i, int64_t j) { return reshaped(i + 1, j); };
  add("QEr", length, length, product);
  add("padded_QEr", length, length + 1, padded);
  add("reshaped_QEr", length + 1, length, reshaped);
  add("S_rel", length, length, skewed);
  add("S_rel.tril()", length, length,
      [&](int64_t i, int64_t j) { return j <= i ? skewed(i, j) : 0; });
}

}  // namespace

std::vector<Step> music_transformer(const Part& part, const Grid& grid) {
  std::vector<Step> list = {arange("positions", 0, grid.keys)};
  const bool square = grid.queries == grid.keys && grid.q_offset == 0;
  if (square && !part.options().flag("bidirectional")) {
    append_skew(list, grid.keys, part.options().integer("max_length"));
  }
  list.push_back(pairwise("relative_positions", grid, [](int64_t q, int64_t k) { return k - q; }));
  list.push_back(index_step("rows of Er, -1 for none", part, grid));
  return list;
}

}  // namespace relpos::notebooks
