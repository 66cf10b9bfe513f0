#include "binding/over_heads.h"

#include "base/parallel.h"
#include "base/zeros.h"

namespace relpos {

TermData over_heads(TermData table, int64_t heads) {
  if (table.view.shape[0] == 1 && heads > 1) {
    table.view.shape[0] = heads;
    table.view.strides[0] = 0;
  }
  return table;
}

std::vector<double> sum_of_heads(const std::vector<double>& all, int64_t batch, int64_t heads) {
  if (all.empty()) return {};
  const auto rows = static_cast<size_t>(batch), count = static_cast<size_t>(heads);
  const size_t size = all.size() / rows / count;
  std::vector<double> sums = zeros(static_cast<int64_t>(rows * size));
  for (size_t row = 0; row < rows * count; ++row) {
    check_cancelled();
    double* to = sums.data() + row / count * size;
    const double* of_row = all.data() + row * size;
    in_pieces(static_cast<int64_t>(size), [&](int64_t from, int64_t end) {
      for (int64_t n = from; n < end; ++n) to[n] += of_row[n];
    });
  }
  return sums;
}

}  // namespace relpos
