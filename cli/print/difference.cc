#include "cli/print/difference.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "relpos/error.h"

namespace relpos::cli {

namespace {

double subtract(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0.0;
  return a - b;
}

}  // namespace

bool agrees(double a, double b) {
  constexpr double kHalfUnit = 0x1p-24;
  const double apart = subtract(a, b);
  if (!std::isfinite(apart)) return false;
  return std::abs(apart) <= 4.0 * kHalfUnit * std::max(std::abs(a), std::abs(b));
}

Step difference(const Step& a, const Step& b) {
  Step step{"A - B", a.kind, a.shape, {}};
  for (size_t n = 0; n < a.values.size(); ++n) {
    step.values.push_back(subtract(a.values[n], b.values[n]));
  }
  return step;
}

std::vector<HeadDifference> compare_heads(const Step& a, const Step& b) {
  const auto keys = static_cast<size_t>(a.shape[2]);
  const size_t pairs = static_cast<size_t>(a.shape[1]) * keys;
  std::vector<HeadDifference> heads(static_cast<size_t>(a.shape[0]));
  for (size_t h = 0; h < heads.size(); ++h) {
    HeadDifference& head = heads[h];
    head.pairs = static_cast<int64_t>(pairs);
    for (size_t n = 0; n < pairs; ++n) {
      const double x = a.values[h * pairs + n], y = b.values[h * pairs + n];
      if (agrees(x, y)) ++head.equal;
      double apart = std::abs(subtract(x, y));
      if (std::isnan(apart)) apart = std::numeric_limits<double>::infinity();
      if (apart <= head.largest) continue;
      head.largest = apart;
      head.query = static_cast<int64_t>(n / keys);
      head.key = static_cast<int64_t>(n % keys);
    }
  }
  return heads;
}

Step with_heads(Step stack, int64_t heads) {
  if (stack.shape[0] == heads) return stack;
  check_value(stack.shape[0] == 1, "heads: one position has ", stack.shape[0], ", the other ",
              heads, ": give both the same number, as in 'alibi(heads=8)'");
  const std::vector<double> one = stack.values;
  for (int64_t h = 1; h < heads; ++h) {
    stack.values.insert(stack.values.end(), one.begin(), one.end());
  }
  stack.shape[0] = heads;
  return stack;
}

std::vector<std::pair<int64_t, int64_t>> agreeing_runs(const std::vector<double>& a,
                                                       const std::vector<double>& b) {
  std::vector<std::pair<int64_t, int64_t>> runs;
  for (size_t n = 0; n < a.size(); ++n) {
    if (!agrees(a[n], b[n])) continue;
    const auto at = static_cast<int64_t>(n);
    if (!runs.empty() && runs.back().second == at - 1) {
      runs.back().second = at;
    } else {
      runs.emplace_back(at, at);
    }
  }
  return runs;
}

}  // namespace relpos::cli
