// Dense forms of one part on a grid, written from its terms alone.
#include "relpos/dense.h"

#include <algorithm>
#include <cstring>

#include "base/parallel.h"
#include "binding/bound_part.h"
#include "binding/parts.h"
#include "call/dense_form.h"
#include "call/make_problem.h"
#include "relpos/error.h"
#include "values/views.h"

namespace relpos {
namespace {

void check_grid(const Grid& grid) {
  check_value(grid.queries >= 0 && grid.queries < kPositionLimit,
              "queries: expected 0 or more, below 2^61, got ", grid.queries);
  check_value(grid.keys >= 0 && grid.keys < kPositionLimit,
              "keys: expected 0 or more, below 2^61, got ", grid.keys);
  check_position(grid.q_offset, "q_offset");
}

// Of biases that are read by positions.
double bias_at(const std::vector<DistanceBias>& biases, int64_t h, int64_t delta) {
  double sum = 0.0;
  for (const DistanceBias& bias : biases) {
    if (bias.coordinates != nullptr) continue;
    const int64_t row = bias.map ? (*bias.map)(delta) : ClassMap::kNone;
    if (row != ClassMap::kNone) sum += bias.table.multiplier * bias.table.view.at({h, row});
    if (bias.slopes.view.given() && delta != 0) {
      sum += bias.slopes.multiplier * bias.slopes.view.at({delta < 0 ? 0 : 1, h}) *
             static_cast<double>(delta);
    }
  }
  return sum;
}

// The offset of an element of a key bias, which is [H, Lk] or [1, H, Lk].
int64_t key_offset(const TensorView& view, int64_t h, int64_t j) {
  return view.rank == 3 ? view.offset({0, h, j}) : view.offset({h, j});
}

int64_t row_offset(const TensorView& view, int64_t h, int64_t row) {
  return view.rank == 3 ? view.offset({h, row, 0}) : view.offset({row, 0});
}

int64_t pair_offset(const TensorView& view, const Form& form, int64_t h, int64_t i, int64_t j) {
  return form.heads > 0 ? view.offset({h, i, j, 0}) : view.offset({i, j, 0});
}

// What a bias adds at each distance of the grid, from the first on.
std::vector<double> bias_by_distance(const Form& form, int64_t h,
                                     std::pair<int64_t, int64_t> range) {
  std::vector<double> values;
  CancelTicks tick;
  for (int64_t delta = range.first; delta <= range.second; ++delta) {
    tick();
    values.push_back(bias_at(*form.biases, h, delta));
  }
  return values;
}

void dense_bias(const Form& form, const Grid& grid, const GridPositions& at,
                const TensorView& out) {
  const auto range = at.distances();
  CancelTicks tick;
  for (int64_t h = 0; h < form.heads; ++h) {
    const std::vector<double> values = bias_by_distance(form, h, range);
    for (int64_t i = 0; i < grid.queries; ++i) {
      for (int64_t j = 0; j < grid.keys; ++j) {
        tick();
        double sum = values[static_cast<size_t>(at.delta(i, j) - range.first)];
        for (const DistanceBias& bias : *form.biases) {
          if (bias.coordinates == nullptr) continue;
          const int64_t row = (*bias.map)(delta_of(bias, at, i, j));
          if (row != ClassMap::kNone) sum += bias.table.multiplier * bias.table.view.at({h, row});
        }
        for (const KeyBias& bias : *form.key_biases) {
          sum += bias.values.multiplier * bias.values.view.load(key_offset(bias.values.view, h, j));
        }
        out.store(out.offset({h, i, j}), sum);
      }
    }
  }
}

void dense_rows(const Form& form, const Grid& grid, const GridPositions& at,
                const TensorView& out) {
  const int64_t out_step = out.strides[static_cast<size_t>(out.rank - 1)];
  std::vector<double> sum(static_cast<size_t>(form.columns));
  CancelTicks tick;
  for (int64_t h = 0; h < std::max<int64_t>(form.heads, 1); ++h) {
    for (int64_t i = 0; i < grid.queries; ++i) {
      for (int64_t j = 0; j < grid.keys; ++j) {
        tick(form.columns);
        std::fill(sum.begin(), sum.end(), 0.0);
        for (const ReadTable& read : form.tables) {
          const TensorView& table = read.table->view;
          const int64_t row = (*read.map)(delta_of(read, at, i, j));
          if (row == ClassMap::kNone) continue;
          const int64_t from = row_offset(table, h, row), step = table.strides[table.rank - 1];
          for (int64_t c = 0; c < form.columns; ++c) {
            sum[static_cast<size_t>(c)] += read.table->multiplier * table.load(from + c * step);
          }
        }
        const int64_t to = pair_offset(out, form, h, i, j);
        for (int64_t c = 0; c < form.columns; ++c) {
          out.store(to + c * out_step, sum[static_cast<size_t>(c)]);
        }
      }
    }
  }
}

// Adds what the pairs of each distance sum up to.
void add_bias_gradient(const DistanceBias& bias, int64_t h, int64_t heads, int64_t first,
                       const std::vector<double>& sums, TermGradients::Bias& gradient) {
  CancelTicks tick;
  for (size_t n = 0; n < sums.size(); ++n) {
    tick();
    const int64_t delta = first + static_cast<int64_t>(n);
    const int64_t row = bias.map ? (*bias.map)(delta) : ClassMap::kNone;
    if (!gradient.table.empty() && row != ClassMap::kNone) {
      gradient.table[static_cast<size_t>(h * bias.table.view.shape[1] + row)] +=
          bias.table.multiplier * sums[n];
    }
    if (!gradient.slopes.empty() && delta != 0) {
      gradient.slopes[static_cast<size_t>((delta < 0 ? 0 : heads) + h)] +=
          bias.slopes.multiplier * static_cast<double>(delta) * sums[n];
    }
  }
}

void add_gradient_by_pair(const DistanceBias& bias, int64_t h, const Grid& grid,
                          const GridPositions& at, const TensorView& dout,
                          std::vector<double>& gradient) {
  CancelTicks tick;
  for (int64_t n = 0; n < grid.queries * grid.keys && !gradient.empty(); ++n) {
    tick();
    const int64_t i = n / grid.keys, j = n % grid.keys;
    const int64_t row = (*bias.map)(delta_of(bias, at, i, j));
    if (row == ClassMap::kNone) continue;
    gradient[static_cast<size_t>(h * bias.table.view.shape[1] + row)] +=
        bias.table.multiplier * dout.at({h, i, j});
  }
}

void bias_backward(const Form& form, const Grid& grid, const GridPositions& at,
                   const TensorView& dout, TermGradients& gradients) {
  const auto [first, last] = at.distances();
  CancelTicks tick;
  for (int64_t h = 0; h < form.heads; ++h) {
    std::vector<double> sums(static_cast<size_t>(last - first + 1), 0.0);
    for (int64_t i = 0; i < grid.queries; ++i) {
      for (int64_t j = 0; j < grid.keys; ++j) {
        tick();
        const double upstream = dout.at({h, i, j});
        sums[static_cast<size_t>(at.delta(i, j) - first)] += upstream;
        for (size_t n = 0; n < form.key_biases->size(); ++n) {
          std::vector<double>& own = gradients.key_biases[n].table;
          if (own.empty()) continue;
          own[static_cast<size_t>(h * grid.keys + j)] +=
              (*form.key_biases)[n].values.multiplier * upstream;
        }
      }
    }
    for (size_t b = 0; b < form.biases->size(); ++b) {
      const DistanceBias& bias = (*form.biases)[b];
      if (bias.coordinates == nullptr) {
        add_bias_gradient(bias, h, form.heads, first, sums, gradients.biases[b]);
      } else {
        add_gradient_by_pair(bias, h, grid, at, dout, gradients.biases[b].table);
      }
    }
  }
}

void rows_backward(const Form& form, const ReadTable& read, const Grid& grid,
                   const GridPositions& at, const TensorView& dout, std::vector<double>& gradient) {
  if (gradient.empty()) return;
  const TensorView& table = read.table->view;
  const int64_t rows = table.shape[static_cast<size_t>(table.rank - 2)];
  const int64_t step = dout.strides[static_cast<size_t>(dout.rank - 1)];
  CancelTicks tick;
  for (int64_t h = 0; h < std::max<int64_t>(form.heads, 1); ++h) {
    for (int64_t i = 0; i < grid.queries; ++i) {
      for (int64_t j = 0; j < grid.keys; ++j) {
        tick(form.columns);
        const int64_t row = (*read.map)(delta_of(read, at, i, j));
        if (row == ClassMap::kNone) continue;
        const int64_t from = pair_offset(dout, form, h, i, j);
        double* to = gradient.data() + (h * rows + row) * form.columns;
        for (int64_t c = 0; c < form.columns; ++c) {
          to[c] += read.table->multiplier * dout.load(from + c * step);
        }
      }
    }
  }
}

void check_floating(const TensorView& view, const std::vector<int64_t>& shape, const char* name) {
  check_input(view, shape, name);
  if (!is_floating(view.dtype)) {
    throw_error(ErrorKind::kType, name, ": expected a floating dtype, got ",
                dtype_name(view.dtype));
  }
}

}  // namespace

Grid make_grid(int64_t queries, int64_t keys, std::optional<int64_t> q_offset) {
  const Grid grid{queries, keys, q_offset.value_or(0)};
  check_grid(grid);
  if (!q_offset && queries != keys) {
    refuse_to_guess("Lq = " + std::to_string(queries) +
                    " differs from Lk = " + std::to_string(keys));
  }
  return grid;
}

std::vector<int64_t> dense_shape(const Part& part, const Grid& grid, std::string_view which) {
  check_grid(grid);
  const BoundPart bound(part);
  std::vector<int64_t> shape = find_form(part, bound.terms(), grid, which).shape(grid);
  checked_numel(shape, "dense");
  return shape;
}

void dense(const Part& part, const Grid& grid, std::string_view which, const TensorView& out,
           CancelToken* cancel) {
  const CallScope scope(cancel);
  check_grid(grid);
  const GridPositions at(part, grid);
  const TokenPositions tokens = at.tokens();
  const BoundPart bound(part, at.sizes(), std::vector<bool>(), &tokens);
  const Form form = find_form(part, bound.terms(), grid, which);
  check_floating(out, form.shape(grid), "out");
  check_output(out, form.shape(grid), out.dtype, "out");
  if (out.numel() == 0) return;
  if (form.biases != nullptr) {
    dense_bias(form, grid, at, out);
  } else {
    dense_rows(form, grid, at, out);
  }
}

void dense_backward(const Part& part, const Grid& grid, std::string_view which,
                    const TensorView& dout, const std::vector<TensorView>& dparameters,
                    CancelToken* cancel) {
  const CallScope scope(cancel);
  check_grid(grid);
  check_value(dparameters.size() == part.parameters.size(), "dparameters: expected ",
              part.parameters.size(), " views, got ", dparameters.size());
  std::vector<bool> wants;
  for (const TensorView& view : dparameters) wants.push_back(view.given());
  const GridPositions at(part, grid);
  const TokenPositions tokens = at.tokens();
  const BoundPart bound(part, at.sizes(), wants, &tokens);
  const Form form = find_form(part, bound.terms(), grid, which);
  check_floating(dout, form.shape(grid), "dout");
  for (size_t p = 0; p < wants.size(); ++p) {
    if (!wants[p]) continue;
    check_output(dparameters[p], part.parameters[p].dims(), part.parameters[p].dtype,
                 "dparameters");
  }
  TermGradients gradients = TermGradients::zeros(bound.terms());
  if (dout.numel() > 0) {
    if (form.biases != nullptr) {
      bias_backward(form, grid, at, dout, gradients);
    } else {
      for (size_t n = 0; n < form.tables.size(); ++n) {
        rows_backward(form, form.tables[n], grid, at, dout,
                      which == "value"               ? gradients.value_tables[n].table
                      : gradients.row_tables.empty() ? gradients.column_tables[n].table
                                                     : gradients.row_tables[n].table);
      }
    }
  }
  ParameterSums sums = zero_sums(part, wants);
  bound.pull_back(gradients, sums);
  for (size_t p = 0; p < wants.size(); ++p) {
    if (wants[p]) write_values(sums[p], dparameters[p]);
  }
}

void indices(const Part& part, const Grid& grid, const TensorView& out, CancelToken* cancel) {
  const CallScope scope(cancel);
  check_grid(grid);
  check_output(out, {grid.queries, grid.keys}, DType::kInt64, "out");
  const GridPositions at(part, grid);
  const TokenPositions tokens = at.tokens();
  const BoundPart bound(part, {}, &tokens);
  const std::optional<ReadTable> first =
      part.recipe->reads_distances ? std::nullopt : first_table(bound.terms());
  CancelTicks tick;
  for (int64_t i = 0; i < grid.queries; ++i) {
    for (int64_t j = 0; j < grid.keys; ++j) {
      tick();
      const int64_t value = first ? (*first->map)(delta_of(*first, at, i, j)) : at.delta(i, j);
      std::memcpy(
          static_cast<char*>(out.data) + out.offset({i, j}) * static_cast<int64_t>(sizeof value),
          &value, sizeof value);
    }
  }
}

}  // namespace relpos
