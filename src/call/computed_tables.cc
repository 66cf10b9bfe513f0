// Tables of distance biases that are computed from parameters, for kernels that know no formula.
#include "call/computed_tables.h"

#include <cstddef>
#include <utility>
#include <vector>

#include "binding/parts.h"
#include "call/make_problem.h"
#include "relpos/error.h"
#include "relpos/lower.h"

namespace relpos {

std::vector<std::vector<double>> computed_tables(const TensorView& query, const TensorView& key,
                                                 const TensorView& value, const Position& position,
                                                 const Options& options) {
  const Call call = make_call(query, key, value, position, options);
  std::vector<std::vector<double>> found;
  for (const DistanceBias& bias : call.problem.terms.biases) {
    if (!is_computed_table(bias)) continue;
    const TensorView& view = bias.table.view;
    std::vector<double>& table = found.emplace_back();
    table.reserve(static_cast<size_t>(view.numel()));
    for (int64_t h = 0; h < view.shape[0]; ++h) {
      for (int64_t m = 0; m < view.shape[1]; ++m) {
        table.push_back(bias.table.multiplier * view.at({h, m}));
      }
    }
  }
  return found;
}

void computed_tables_backward(const TensorView& query, const TensorView& key,
                              const TensorView& value, const Position& position,
                              const Options& options,
                              const std::vector<std::vector<double>>& gradients,
                              const std::vector<std::vector<TensorView>>& dparameters) {
  std::vector<std::vector<bool>> wants;
  for (const std::vector<TensorView>& of_part : dparameters) {
    std::vector<bool>& own = wants.emplace_back();
    for (const TensorView& view : of_part) own.push_back(view.given());
  }
  const Call call = make_call(query, key, value, position, options, std::move(wants));
  const Terms& terms = call.problem.terms;
  TermGradients all = TermGradients::zeros(terms);
  size_t next = 0;
  for (size_t n = 0; n < terms.biases.size(); ++n) {
    if (!is_computed_table(terms.biases[n])) continue;
    check_value(next < gradients.size(), "gradients: expected one for each computed table, got ",
                gradients.size());
    const std::vector<double>& given = gradients[next++];
    const int64_t expected = terms.biases[n].table.view.numel();
    check_value(std::ssize(given) == expected, "gradients: expected ", expected,
                " numbers for a computed table, got ", given.size());
    all.biases[n].table = given;
    for (double& number : all.biases[n].table) number *= terms.biases[n].table.multiplier;
  }
  pull_back_parts(position, call.sizes, call.wants, std::move(all), dparameters);
}

}  // namespace relpos
