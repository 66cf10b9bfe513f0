// He et al. 2021 (DeBERTa), equations 4 and 5: c2p and p2c, with the logarithmic buckets of v3.
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "bench_cases.h"

namespace relpos::cli {
namespace {

constexpr int64_t kHeads = 8, kDim = 64, kSpan = 256, kMiddle = kSpan / 2, kFarthest = 512;

// Exact up to 128, then logarithmic up to 512.
int64_t bucket(int64_t distance) {
  const int64_t far = std::abs(distance);
  if (far <= kMiddle) return distance;
  const double share = std::log(static_cast<double>(far) / kMiddle) /
                       std::log(static_cast<double>(kFarthest - 1) / kMiddle);
  const auto size = static_cast<int64_t>(std::ceil(share * (kMiddle - 1))) + kMiddle;
  return distance > 0 ? size : -size;
}

int64_t table_row(int64_t delta) {
  return std::clamp<int64_t>(bucket(-delta) + kSpan, 0, 2 * kSpan - 1);
}

ClassMap classes() {
  std::vector<int64_t> starts, rows{table_row(-2 * kFarthest)};
  for (int64_t delta = -2 * kFarthest; delta <= 2 * kFarthest; ++delta) {
    if (table_row(delta) == rows.back()) continue;
    starts.push_back(delta);
    rows.push_back(table_row(delta));
  }
  return ClassMap::thresholds(std::move(starts), std::move(rows));
}

std::vector<ParameterSpec> parameters(const OptionMap&) {
  const std::vector<int64_t> shape{kHeads, 2 * kSpan, kDim};
  return {{"pos_key", shape, Init::normal(0.1), true, "rows that queries meet"},
          {"pos_query", shape, Init::normal(0.1), true, "rows that keys meet"}};
}

void lower(const Setting& setting, Terms& terms) {
  RowTable rows;
  rows.map = classes();
  rows.table = TermData::parameter(setting.parameters[0], setting.wants_gradient[0]);
  terms.row_tables.push_back(std::move(rows));
  ColumnTable columns;
  columns.map = classes();
  columns.table = TermData::parameter(setting.parameters[1], setting.wants_gradient[1]);
  terms.column_tables.push_back(std::move(columns));
}

void pull_back(const Setting&, const TermGradients& gradients,
               std::vector<std::vector<double>>& sums) {
  const auto add = [](std::vector<double>& sum, const std::vector<double>& part) {
    if (sum.empty() || part.empty()) return;
    std::ranges::transform(sum, part, sum.begin(), std::plus<>());
  };
  add(sums[0], gradients.row_tables[0].table);
  add(sums[1], gradients.column_tables[0].table);
}

}  // namespace

const Scheme& row_and_column_tables() {
  static const Scheme scheme = [] {
    Scheme made;
    made.name = "row_and_column_tables";
    made.class_name = "RowAndColumnTables";
    made.summary = "rows of 512 classes for queries and for keys";
    made.source = "He et al. 2021, Disentangled attention, equations 4 and 5";
    made.parameters = parameters;
    made.lower = lower;
    made.pull_back = pull_back;
    return made;
  }();
  return scheme;
}

}  // namespace relpos::cli
